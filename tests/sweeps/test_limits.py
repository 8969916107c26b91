"""Sweep files that ask for more than any machine has are refused at once, and in little memory."""

import subprocess
import sys
import time

import pytest

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import load_sweep, sweep_of_spec
from depthrate.sweeps.studies import make_studies

LAUGHS = "\n".join(f"  - &a{n} [{', '.join(f'*a{n - 1}' for _ in range(9))}]" for n in range(1, 12))
BILLION = "fit:\n  - &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + LAUGHS + "\n"
BODY = "name: bomb\ntask: collapse\nparams: {arch: rn1, depth: 2}\n"


def search(option, range_option):
    return BODY + f"search: {{objective: nc1, {option}, params: {{lr: {{low: 0.1, high: 1, {range_option}}}}}}}\n"


HUGE = "9" * 5000
BIG = "{range: [1000000]}"

BOMBS = {
    "aliases in fit": (BILLION + BODY, "line 1: aliases expand to .* values, at most 100,000 more"),
    "aliases in name": (BILLION.replace("fit:", "x:") + "name: *a11\ntask: collapse\n", "aliases expand to"),
    "aliases in params": (BILLION.replace("fit:", "include:") + "name: b\nparams: {width: *a11}\n", "aliases expand"),
    "aliases in exclude": (BILLION.replace("fit:", "exclude:") + BODY, "aliases expand to"),
    "aliases in seeds": (BILLION.replace("fit:", "seeds:") + BODY, "aliases expand to"),
    "a long text, often": (f"fit: [&a {'x' * 20_000}, {', '.join(['*a'] * 9000)}]\n" + BODY, "aliases expand to"),
    "merged mappings": (
        "m0: &m0 {a: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 12)),
        "aliases expand to",
    ),
    "an alias of itself": ("name: &a [*a]\n" + BODY[11:], "line 1: an alias refers to its own parent"),
    "tiny steps": (search("sampler: grid", "step: 1e-300"), "step is 1e-300, which makes more than 10\\^15 values"),
    "tiny steps for tpe": (search("sampler: tpe", "step: 1e-300"), "more than 10\\^15 values. Use a larger step"),
    "small steps": (search("sampler: grid", "step: 1e-9"), "has 900,000,001 combinations, sampler grid"),
    "a wide grid search": (
        BODY + "search: {objective: nc1, sampler: grid, params: {steps: {low: 1, high: 1000000000000000}}}\n",
        "has more than 10\\^15 combinations, sampler grid",
    ),
    "many proposals, a float": (search("trials: 1e11", "log: true"), "trials is 100000000000.0, expected an int"),
    "many proposals": (search("trials: 100000000000", "log: true"), "search.trials is 100,000,000,000, at most"),
    "large batches": (search("batch: 100000000000", "log: true"), "search.batch is 100,000,000,000, at most"),
    "studies of many proposals": (
        search("trials: 1000000", "log: true") + "grid: {width: [2, 4]}\n",
        "2,000,000 trials, at most 1,000,000",
    ),
    "many seeds": (BODY + "grid: {width: [2, 4, 8]}\nseeds: 1000000\n", "3,000,000 trials, at most 1,000,000"),
    "more seeds": (BODY + "seeds: 100000000000\n", "seeds is 100000000000, expected a count from 1 to 1,000,000"),
    "many digits": (BODY + f"seeds: {HUGE}\n", "line 4: an int of 5,000 digits, at most 300"),
    "many digits in a range": (BODY + f"grid: {{width: {{range: [{HUGE}]}}}}\n", "line 4: an int of 5,000"),
    "a huge range": (BODY + f"grid: {{width: {{range: [{'9' * 99}]}}}}\n", "has more than 10\\^15 values, at most"),
    "a huge linspace": (BODY + "grid: {lr: {linspace: [0, 1, 1000000000000]}}\n", "has 1,000,000,000,000 values"),
    "a huge logspace": (BODY + f"grid: {{lr: {{logspace: [1, 2, {'9' * 99}]}}}}\n", "has more than 10\\^15 values"),
    "many large axes": (
        BODY + f"grid: {{width: {BIG}, steps: {BIG}, batch_size: {BIG}, momentum: {BIG}}}\n",
        "grid has more than 10\\^15 combinations, at most 1,000,000",
    ),
    "grids of grids": (
        BODY + f"grid: {{width: {BIG}}}\ngrids: [{{grid: {{steps: {BIG}}}}}]\n",
        "1,000,000,000,000 trials, at most 1,000,000",
    ),
}


@pytest.mark.parametrize(("text", "message"), BOMBS.values(), ids=BOMBS)
def test_huge_sweeps_are_refused(tmp_path, text, message):
    path = tmp_path / "bomb.yaml"
    path.write_text(text)
    started = time.process_time()
    with pytest.raises(SweepError, match=message) as refused:
        sweep = load_sweep(str(path))
        task = sweep.load_task()
        expand(sweep, task)
        make_studies(sweep, task)
    assert time.process_time() - started < 1.0 and len(str(refused.value)) < 1000


@pytest.mark.slow
def test_refusals_take_little_memory(tmp_path):
    """In a process of its own, limited to 200 MB more than it has once everything is imported."""
    for number, (text, _) in enumerate(BOMBS.values()):
        (tmp_path / f"{number}.yaml").write_text(text)
    code = (
        "import resource, sys\n"
        "from depthrate.sweeps import expand, load, studies, yaml_file\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 200_000_000,) * 2)\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        sweep = load.load_sweep(path)\n"
        "        task = sweep.load_task()\n"
        "        expand.expand(sweep, task), studies.make_studies(sweep, task)\n"
        "    except load.SweepError:\n"
        "        print('refused')\n"
    )
    files = sorted(str(path) for path in tmp_path.glob("*.yaml"))
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True)
    assert done.stdout.split() == ["refused"] * len(BOMBS), done.stderr


def test_more_is_allowed_where_it_is_asked_for(tmp_path):
    path = tmp_path / "many.yaml"
    path.write_text(BODY + "seeds: [0, 1, 2]\ngrid: {width: {range: [2, 6]}}\nmax_trials: 11\n")
    with pytest.raises(SweepError, match="12 trials, at most 11 are allowed.*max_trials"):
        expand(load_sweep(str(path)))
    sweep = load_sweep(str(path), {"max_trials": 12})
    assert len(expand(sweep)) == 12 and sweep_of_spec(sweep.spec()) == sweep
    with pytest.raises(SweepError, match="max_trials is the value 0, expected an int, at least 1"):
        load_sweep(str(path), {"max_trials": 0})


def test_aliases_of_ordinary_size_are_understood(tmp_path):
    path = tmp_path / "alias.yaml"
    text = "name: x\ntask: collapse\ngrids:\n  - {params: &p {arch: rn1, depth: 2}}\n  - {params: {<<: *p, width: 8}}\n"
    path.write_text(text)
    assert [trial.params["width"] for trial in expand(load_sweep(str(path)))] == [64, 8]


def test_huge_numbers_are_refused():
    with pytest.raises(SweepError, match="seeds is a value with thousands of digits"):
        expand(
            sweep_of_spec({"name": "x", "task": "collapse", "params": {"arch": "rn1", "depth": 2}, "seeds": 10**5000})
        )
    with pytest.raises(SweepError, match="'width' is a value with thousands of digits, expected"):
        expand(
            sweep_of_spec({"name": "x", "task": "collapse", "params": {"arch": "rn1", "depth": 2, "width": 10**5000}})
        )
