"""Sweep files: YAML as people write it, --set, and where files are found."""

import math
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import load_sweep, parse_yaml, sweep_of_spec
from depthrate.tasks.interface import Engine, TaskError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("-2.5e-3", -0.0025),
        (".5", 0.5),
        ("1.", 1.0),
        ("3", 3),
        ("3.0", 3.0),
        ("rn1", "rn1"),
        ("1e", "1e"),
        ("none", "none"),
        ("null", None),
        ("'1e-4'", "1e-4"),
        ("no", "no"),
        ("Off", "Off"),
        ("y", "y"),
        ("010", "010"),
        ("2024-01-31", "2024-01-31"),
        ("=", "="),
        ("True", True),
    ],
)
def test_yaml_has_numbers_booleans_and_text(text, value):
    found = parse_yaml(f"lr: {text}")["lr"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 1, c: 2}", "line 2: key 'c' is repeated"),
        ("a: [", "not YAML"),
        ("1: 2", "key 1 is not a string. Quote it"),
        ("a: !!python/object:os.x {}", "not YAML"),
        ("[" * 500, "not YAML"),
    ],
    ids=lambda part: part[:20],
)
def test_yaml_that_is_not_understood_is_refused(text, message):
    with pytest.raises(SweepError, match=message):
        parse_yaml(text)


def test_help_needs_no_yaml_or_numpy():
    code = (
        "from depthrate.sweeps import packing, load; import sys; print({'yaml', 'numpy', 'torch'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


FILE = """
name: mine
task: collapse
params: {arch: rn1, width: 16}
grid: {depth: [2, 3]}
derive: {lr: 0.1 / depth}
seeds: 2
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, {(2, 16, 0.05), (3, 16, 0.1 / 3)}),
        ({"width": 32}, {(2, 32, 0.05), (3, 32, 0.1 / 3)}),
        ({"depth": 5}, {(5, 16, 0.02)}),
        ({"depth": [4, 5]}, {(4, 16, 0.025), (5, 16, 0.02)}),
        ({"width": {"range": [8, 10]}, "depth": 2}, {(2, 8, 0.05), (2, 9, 0.05)}),
        ({"lr": 0.3}, {(2, 16, 0.3), (3, 16, 0.3)}),
        ({"seeds": [5]}, {(2, 16, 0.05), (3, 16, 0.1 / 3)}),
    ],
)
def test_set_replaces_what_the_file_says(file, overrides, expected):
    trials = expand(load_sweep(file, overrides))
    assert {tuple(t.params[name] for name in ("depth", "width", "lr")) for t in trials} == expected
    assert {t.params["seed"] for t in trials} == ({5} if "seeds" in overrides else {0, 1})


@pytest.mark.parametrize(
    "part", ["grids: [{grid: {width: [8, 9]}}]", "include: [{depth: 7, width: 8}]", "grids: [{params: {width: 8}}]"]
)
def test_set_is_never_silently_overruled(tmp_path, part):
    path = tmp_path / "grids.yaml"
    path.write_text("name: mine\ntask: collapse\nparams: {arch: rn1}\ngrid: {depth: [2]}\n" + part)
    try:
        trials = expand(load_sweep(str(path), {"width": 32}))
    except SweepError as error:
        assert "'width' is given in" in str(error)
    else:
        assert {t.params["width"] for t in trials} == {32}


@pytest.mark.parametrize(
    ("content", "overrides", "message"),
    [
        ("nam: x", {}, r"bad\.yaml: unknown key 'nam'.*did you mean 'name'"),
        ("name: x\ntask: collapse\nparams: [1]", {"depth": 3}, r"bad\.yaml: params is a list"),
        (FILE, {"dept": 3}, r"unknown parameter 'dept'.*did you mean 'depth'"),
        (FILE, {"depth": [math.inf]}, r"parameter 'depth' is inf, expected an int"),
        (FILE, {"depth": {"linspace": [1, math.inf, 3]}}, r"parameter 'depth' is nan, expected an int"),
        (FILE, {"lr": math.nan}, r"parameter 'lr' is nan, expected a number"),
        (FILE, {"lr": [date(2020, 1, 1)]}, r"parameter 'lr' is datetime.date\(2020, 1, 1\), expected a number"),
        (FILE, {"depth": {1, 2}}, r"parameter 'depth' is \{1, 2\}, expected an int"),
        (FILE, {"seeds": [math.nan]}, r"seeds is \[nan\], expected a count"),
        ("name: \xff", {}, r"bad\.yaml"),
    ],
)
def test_faults_name_their_path(tmp_path, content, overrides, message):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(SweepError, match=message):
        expand(load_sweep(str(path), overrides))


def test_a_missing_file_lists_the_shipped_sweeps(tmp_path):
    with pytest.raises(SweepError, match=r"'quikstart' does not exist.*did you mean 'quickstart'.*Shipped.*quickstart"):
        load_sweep("quikstart")
    with pytest.raises(SweepError, match="is a folder"):
        load_sweep(str(tmp_path))
    for folder in ("papers/pfc", "papers/pfc/"):
        with pytest.raises(SweepError, match="Give one of papers/pfc/cifar10, "):
            load_sweep(folder)


def test_spec_round_trip_and_hash(file):
    sweep = load_sweep(file)
    assert sweep_of_spec(sweep.spec()) == sweep and sweep_of_spec(sweep.spec()).spec_hash() == sweep.spec_hash()
    assert load_sweep(file, {"width": 17}).spec_hash() != sweep.spec_hash()


def test_task_file_beside_the_sweep(tmp_path, monkeypatch):
    (tmp_path / "law.py").write_text("from depthrate import task\n\n@task()\ndef law(*, depth: int):\n    return {}\n")
    (tmp_path / "s.yaml").write_text("name: s\ntask: ./law.py:law\ngrid: {depth: [1, 2]}\n")
    monkeypatch.chdir("/")
    assert [trial.task for trial in expand(load_sweep(str(tmp_path / "s.yaml")))] == ["law:law", "law:law"]


def test_missing_function_lists_alternatives(tmp_path: Path) -> None:
    path = tmp_path / "my_sweep.py"
    path.write_text("import depthrate\n\ndef wd():\n    pass\n\ndef other():\n    raise SystemExit\n")
    with pytest.raises(SweepError, match=r"as in .*my_sweep.py:wd \(its functions: wd, other\)"):
        load_sweep(str(path))


def test_misplaced_task_key(tmp_path):
    text = "import depthrate\n\n@depthrate.task(version=1)\ndef power(*, depth: int, context):\n    return {}\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(SweepError, match="'power' is a task, not a sweep. Name it in a sweep file: task: ./mine"):
        load_sweep(f"{tmp_path}/mine.py:power")


def test_writable_task_file_is_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("raise SystemExit")
    path.chmod(0o666)
    with pytest.raises(TaskError, match=r"mine.py can be written by everybody \(mode 666\)"):
        load_sweep(f"{path}:make")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"engine": "fast"}, r"^engine is 'fast', expected one of auto, native, eager"),
        ({"max_trials": True}, "^max_trials is true or false, expected an int, at least 1$"),
        ({"params": 3}, "^params is the value 3, expected a mapping from parameter to value$"),
        ({"grids": {}}, "^grids is a mapping, expected a list of mappings$"),
        ({"exclude": [[1]]}, r"^exclude\[0\] is a list, expected a mapping$"),
        ({"fit": 3}, "^fit is the value 3, expected a list of mappings$"),
        ({"fit": [3]}, r"^fit\[0\] is the value 3, expected a mapping$"),
        ({"fit": [{}]}, "^fit entry {}: metric is missing, expected a name"),
        ({"fit": [{"metric": "nc1", "by": [3]}]}, r"by\[0\] is the value 3, expected a list of parameter names$"),
        ({"search": {"params": {"lr": [1]}}}, "^search.objective is missing, expected SQL over"),
        (
            {"search": {"params": {"lr": [1]}, "objective": "nc1", "direction": ["up"]}},
            r"^search.direction\[0\] is 'up', expected one of minimize, maximize$",
        ),
        (
            {"search": {"params": {"lr": [1]}, "objective": "nc1", "measure": {"params": 3}}},
            "^search.measure.params is 3, expected a mapping$",
        ),
        ({"search": {"params": {"lr": [1]}, "objective": []}}, r"^search.objective is \[\], expected SQL over"),
    ],
    ids=str,
)
def test_mismatches_give_value_and_allowed(parts, message):
    with pytest.raises(SweepError, match=message):
        sweep_of_spec({"name": "s", "task": "collapse"} | parts)


def test_a_sweep_is_a_mapping():
    with pytest.raises(SweepError, match="the sweep is a list, expected a mapping with the keys name, task"):
        sweep_of_spec([1])


@pytest.mark.parametrize("engine", list(Engine))
def test_engine_keeps_ids_and_default_hash(file, engine):
    plain, sweep = load_sweep(file), load_sweep(file, {"engine": engine.value})
    assert sweep.engine is engine and sweep_of_spec(sweep.spec()) == sweep and expand(sweep) == expand(plain)
    assert (sweep.spec_hash() == plain.spec_hash()) == (engine is Engine.AUTO)


def test_null_is_a_default():
    plain = sweep_of_spec({"name": "s", "task": "collapse", "fit": [{"metric": "nc1"}]})
    keys = ("params", "grid", "grids", "seeds", "search", "figures", "max_trials", "engine")
    fit = {"metric": "nc1", "layer": None, "over": None}
    spelled = sweep_of_spec({"name": "s", "task": "collapse", "fit": [fit], **dict.fromkeys(keys)})
    assert spelled == plain
    assert spelled.spec() == {
        "name": "s",
        "task": "collapse",
        "fit": [{"metric": "nc1", "x": "depth", "by": []}],
    }


def test_number_types_keep_the_hash():
    """A spec of before has `target: 1` as a whole number; read as 1.0 it would be another sweep's."""
    request = sweep_of_spec({"name": "s", "task": "collapse", "fit": [{"metric": "nc1", "target": 1, "x_min": 2.5}]})
    assert repr(request.spec()["fit"][0]) == "{'metric': 'nc1', 'x': 'depth', 'by': [], 'x_min': 2.5, 'target': 1}"


ODD_VALUES = """
import msgspec
from depthrate.sweeps import search_space, spec

VALUES = [1e11, "zz", "", 0, -1, True, None, [], ["q"], [3], {"a": 1}, {}, 10**400, float("nan"), (1,), [{}], {1: 2}]
parts = [*spec.SpecSection.__subclasses__(), search_space.SearchedParameter]

def refuse(value, kind):
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, spec.SweepError):
        pass

for part in parts * 30:
    for field in msgspec.structs.fields(part):
        for value in VALUES:
            refuse(value, field.type)
            refuse({field.name: value}, part)
print(len(parts))
"""


def test_no_value_of_any_key_ends_the_process():
    """In a process of its own: msgspec, which is compiled, has crashed on types with limits of two kinds."""
    done = subprocess.run([sys.executable, "-c", ODD_VALUES], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) >= 8, done.stderr


def test_set_makes_another_sweep() -> None:
    assert load_sweep("quickstart", {"steps": 60}).name == "quickstart.steps-60"
    assert load_sweep("quickstart", {"depth": [2, 3]}).name == "quickstart.depth-2-3"
    assert load_sweep("quickstart", {"engine": "eager"}).name == "quickstart"
    assert load_sweep("quickstart", {"steps": 60, "name": "short"}).name == "short"
    long = [load_sweep("quickstart", {"depth": list(range(2, stop))}).name for stop in (50, 51)]
    assert long[0] != long[1] and max(map(len, long)) < 70
