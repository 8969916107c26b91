"""Searches: proposals, their dependence on results, and that no kill loses or doubles a proposal."""

import functools
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner, Result

from depthrate.orchestrator.analysis.open_results import open_results, results_of
from depthrate.orchestrator.api.find_sweep import find_sweep
from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.monitor.status import sweep_status
from depthrate.storage.attempts.searches import Batch, Report, SearchRecords
from depthrate.storage.files.store import Store
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.spec import Prune, Search
from depthrate.sweeps.studies import make_studies

optuna = pytest.importorskip("optuna", reason="needs pip install 'depthrate[search]'")
from depthrate.orchestrator.analysis.fit_requests import Fits  # noqa: E402
from depthrate.orchestrator.report.read_store import read_report  # noqa: E402
from depthrate.orchestrator.search.samplers import StudySampler  # noqa: E402
from depthrate.orchestrator.search.search_view import ProposalOutcome, ProposalState, with_search  # noqa: E402
from depthrate.orchestrator.search.studies import thresholds  # noqa: E402

TASKS = Path(__file__).parents[2] / "support/search_tasks.py"
RANGES = {"x": {"low": 0.01, "high": 10.0, "log": True}, "y": {"low": -2.0, "high": 2.0}}
STEPPED = {"x": {"low": 0.0, "high": 5.0, "step": 0.5}, "y": {"low": 0.0, "high": 3.0, "step": 1.0}}
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
SAMPLERS = ("tpe", "random", "qmc", "cmaes", "grid")


def height(values: dict[str, Any]) -> float:
    """A valley with its lowest point, 0, at x = 0.5, y = 1."""
    return float(math.log(max(values["x"], 1e-3) / 0.5) ** 2 + 3 * (values["y"] - 1) ** 2)


def space(ranges: dict[str, Any]) -> str:
    """Return the text of a task file with the parameters of the ranges."""
    return "import depthrate\n@depthrate.task(version=1)\ndef f(*, x: float, y: float): return {}\n"


@pytest.fixture(scope="module")
def make_sampler(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., StudySampler]:
    path = tmp_path_factory.mktemp("task") / "f.py"
    path.write_text(space(RANGES))

    def make(**options: Any) -> StudySampler:
        ranges = STEPPED if options.get("sampler") == "grid" else RANGES
        spec = {"name": "s", "task": f"{path}:f", "search": {"params": ranges, "objective": "nc1"} | options}
        sweep = sweep_of_spec(spec)
        (study,) = make_studies(sweep, sweep.load_task())
        return StudySampler(study.search, study.dimensions)

    return make


def drive(sampler: StudySampler, sizes: list[int], outcome: Callable[..., ProposalOutcome]) -> list[list[Any]]:
    """Run a study to its end in this process, batch by batch."""
    batches: list[list[Any]] = []
    for size in sizes:
        outcomes = [outcome(values) for batch in batches for values in batch]
        sampler.replay(batches, outcomes)
        batches.append(sampler.ask(size))
    return batches


def complete(values: dict[str, Any]) -> ProposalOutcome:
    return ProposalOutcome(ProposalState.COMPLETE, (height(values),))


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "qmc"])
def test_sequential_proposals_equal_optuna(sampler: str, make_sampler: Any) -> None:
    samplers = optuna.samplers
    plain = {"tpe": samplers.TPESampler, "random": samplers.RandomSampler, "cmaes": samplers.CmaEsSampler}
    plain["qmc"] = functools.partial(samplers.QMCSampler, scramble=True)
    plain_sampler = plain[sampler](seed=7)
    plain = optuna.create_study(sampler=plain_sampler)

    def objective(trial: Any) -> float:
        return height({"x": trial.suggest_float("x", 0.01, 10, log=True), "y": trial.suggest_float("y", -2, 2)})

    plain.optimize(objective, n_trials=15)
    batches = drive(make_sampler(sampler=sampler, seed=7), [1] * 15, complete)
    assert [values for (values,) in batches] == [trial.params for trial in plain.trials]


@pytest.mark.slow
def test_tpe_in_batches_reaches_what_plain_optuna_reaches(make_sampler: Any) -> None:
    """Compare the best of 40 proposals in batches of 5 with plain TPE and random search, over 10 seeds."""

    def best_of(sampler: Any) -> float:
        study = optuna.create_study(sampler=sampler)
        study.optimize(
            lambda t: height({"x": t.suggest_float("x", 0.01, 10, log=True), "y": t.suggest_float("y", -2, 2)}), 40
        )
        return float(study.best_value)

    def ours(seed: int) -> float:
        batches = drive(make_sampler(seed=seed), [5] * 8, complete)
        return min(height(values) for batch in batches for values in batch)

    seeds = range(10)
    batched = [ours(seed) for seed in seeds]
    plain = [best_of(optuna.samplers.TPESampler(seed=seed)) for seed in seeds]
    chance = [best_of(optuna.samplers.RandomSampler(seed=seed)) for seed in seeds]
    middle = {n: statistics.median(v) for n, v in (("ours", batched), ("plain", plain), ("chance", chance))}
    print(middle)
    # sign test over seeds: were batches as good as one by one, ours would win half; 1 of 10 or fewer has p = 0.011
    assert sum(a <= b for a, b in zip(batched, plain, strict=True)) > 1, middle
    assert middle["ours"] < middle["chance"] / 2, middle


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_new_process_proposes_the_same(sampler: str, make_sampler: Any) -> None:
    def outcome(values: dict[str, Any]) -> ProposalOutcome:
        return ProposalOutcome(ProposalState.UNDEFINED) if values["y"] < -1.5 else complete(values)

    sizes = [4, 4, 4, 4, 3]
    quiet = drive(make_sampler(sampler=sampler), sizes, outcome)
    for known in range(1, 5):
        resumed = make_sampler(sampler=sampler)
        resumed.replay(quiet[:known], [outcome(values) for batch in quiet[:known] for values in batch])
        assert resumed.ask(sizes[known]) == quiet[known]
    proposals = [tuple(values.values()) for batch in quiet for values in batch]
    assert len(set(proposals)) == len(proposals) == 19


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_the_store_says_was_proposed_counts(sampler: str, make_sampler: Any) -> None:
    """Another version of Optuna made other proposals: they are reported too, and not made again."""
    foreign = [[{"x": 0.5, "y": 1.0}, {"x": 1.0, "y": 0.0}]]
    resumed = make_sampler(sampler=sampler)
    resumed.replay(foreign, [complete(values) for values in foreign[0]])
    done = [t for t in resumed._study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    assert [t.params for t in done] == foreign[0]
    assert [t.value for t in done] == [
        0.0,
        complete(foreign[0][1]).values[0],
    ]
    assert not [values for values in resumed.ask(20) if values in foreign[0]]


def test_a_grid_ends_when_all_is_proposed(make_sampler: Any) -> None:
    sampler = make_sampler(sampler="grid")
    batches = drive(sampler, [20, 20, 20], complete)
    assert [len(batch) for batch in batches] == [20, 20, 4], "11 x 4 points"


def test_several_objectives(make_sampler: Any) -> None:
    sampler = make_sampler(objective=["a", "b"], direction=["minimize", "maximize"])

    def outcome(values: dict[str, Any]) -> ProposalOutcome:
        if values["y"] > 1.5:
            return ProposalOutcome(ProposalState.UNDEFINED)
        return ProposalOutcome(ProposalState.COMPLETE, (values["x"], values["y"]))

    batches = drive(sampler, [6] * 4, outcome)
    assert sum(map(len, batches)) == 24


def prune(rule: str, outcomes: list[ProposalOutcome], direction: str = "minimize", **more: Any) -> dict[str, float]:
    settings = Prune(rule, "loss", **({"startup": 3} | more))
    return thresholds(Search({}, ("nc1",), (direction,), prune=settings), outcomes)


def reporting(state: str, *values: float) -> ProposalOutcome:
    """Return a proposal that reported these values at steps 1, 2, 4, 8, ..."""
    return ProposalOutcome(ProposalState(state), (), (Report({2**place: value for place, value in enumerate(values)}),))


def test_median_thresholds() -> None:
    outcomes = [reporting("complete", 9, 8, 7), reporting("complete", 5, 4, 3), reporting("complete", 7, 5, 6)]
    assert prune("median", outcomes) == {"1": 7, "2": 5, "4": 6}
    assert prune("median", outcomes, from_step=2) == {"2": 5, "4": 6}
    assert prune("median", outcomes[:2]) == {}, "too few have been there"
    assert prune("median", [*outcomes, reporting("pruned", 100)]) == {"1": 7, "2": 5, "4": 6}, "the pruned do not count"


def test_halving_thresholds() -> None:
    values = [9, 1, 8, 2, 7, 3, 6, 4, 5]
    outcomes = [reporting("pruned" if v > 3 else "complete", v, v, *([v, v] if v <= 3 else [])) for v in values]
    assert prune("halving", outcomes) == {"1": 3, "4": 1}, "rungs 1, 3, 9: reported at 1 and 4, best third on"
    assert prune("halving", outcomes, "maximize")["1"] == 7


# end to end


def write(tmp_path: Path, **spec: Any) -> Path:
    path = tmp_path / "s.yaml"
    task = spec.pop("task")
    path.write_text(yaml.safe_dump({"name": "s", "task": f"{TASKS}:{task}"} | spec))
    return path


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(path: Path, store: Store, *arguments: str, code: int = 0) -> Result:
    result = invoke("run", path, "--store", store.root, *arguments)
    assert result.exit_code == code, result.output
    return result


def proposals(store: Store) -> dict[str, list[list[dict[str, Any]]]]:
    """Return study -> batches -> values from the store."""
    records = SearchRecords(store, "s")
    records.refresh()
    studies = sorted({batch.study_id for batch in records._batches.values()})
    return {study: [[dict(v) for b in part for v in b.values] for part in records.batches(study)] for study in studies}


BOWL = {"task": "bowl", "grid": {"depth": [1, 2, 4, 8]}}
BOUNDS = {"x": {"low": 0.01, "high": 10.0, "log": True}}
BOWL |= {"search": {"trials": 12, "batch": 4, "params": BOUNDS, "objective": "nc1", "measure": {"seeds": [5, 6]}}}


@pytest.fixture(scope="module")
def bowl(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Store, str]:
    """An uninterrupted run of BOWL: its file, its store and its output."""
    folder = tmp_path_factory.mktemp("bowl")
    path, store = write(folder, **BOWL), Store(str(folder / "store"))
    return path, store, run(path, store).output


@pytest.mark.slow
def test_best_per_depth_is_measured(bowl: tuple[Path, Store, str]) -> None:
    path, folder, output = bowl
    assert "search: 4 studies of 12 proposals each (tpe, the first 12 random), 48 proposed" in output
    assert "all 56 trials" in output
    results = results_of(folder)
    assert results.sql("select count(*), count(distinct trial_id) from trials").fetchall() == [(56, 56)]
    measured = dict(results.sql("select depth, any_value(x) from results where seed > 0 group by depth").fetchall())
    best = dict(results.sql("select depth, arg_min(x, nc1) from results where seed = 0 group by depth").fetchall())
    assert measured == best and len(best) == 4
    assert all(abs(math.log(x * depth)) < 1.2 for depth, x in best.items()), best
    again = run(path, folder).output
    assert "to run" not in again
    count = "select count(*) from attempts"
    assert results_of(folder).sql(count).fetchall() == results.sql(count).fetchall()
    assert '"num_trials": 56' in invoke("status", "--store", folder.root, "--json").output
    assert '"num_done": 56' in invoke("plan", path, "--store", folder.root, "--json").output


@pytest.mark.slow
def test_more_trials_go_on_with_the_study(folder: Store, tmp_path: Path) -> None:
    spec = {"task": "bowl", "search": {key: value for key, value in BOWL["search"].items() if key != "measure"}}  # type: ignore[attr-defined]
    path = write(tmp_path, **spec)
    run(path, folder, "--set", "search.trials=6")
    (first,) = proposals(folder).values()
    assert [len(batch) for batch in first] == [4, 2]
    run(path, folder, "--set", "search.trials=11")
    (more,) = proposals(folder).values()
    assert more[:2] == first and [len(batch) for batch in more] == [4, 2, 4, 1]


@pytest.mark.slow
def test_divergence_is_passed_and_failure_skipped(folder: Store, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    search = {"params": {"x": [0.1, 0.2, 0.6, 0.7, 0.8, 0.9]}, "objective": "nc1", "sampler": "random"}
    search |= {"trials": 6, "batch": 2}
    path = write(tmp_path, task="fragile", params={"flag": str(flag)}, search=search)
    output = run(path, folder, code=1).output
    assert "2 trials are not done" in output and "4 complete, 2 failed" in output
    before = proposals(folder)
    flag.unlink()
    assert "6 complete" in run(path, folder).output
    assert proposals(folder) == before, "the failed trial is run again, and no other is proposed"


@pytest.mark.slow
def test_undefined_objectives(folder: Store, tmp_path: Path) -> None:
    search = {"params": {"x": [1.0, 6.0, 7.0]}, "objective": "nc1", "trials": 9, "sampler": "grid"}
    path = write(tmp_path, task="bowl", search=search)
    output = run(path, folder).output
    assert "3 proposed: 1 complete, 2 undefined" in output


@pytest.mark.slow
def test_missing_objective_is_named(folder: Store, tmp_path: Path) -> None:
    path = write(
        tmp_path, task="bowl", search={"params": {"x": [1.0]}, "objective": "nc11", "trials": 1, "sampler": "grid"}
    )
    output = " ".join(run(path, folder, code=2).output.split())
    assert "search.objective is 'nc11', which fails on the trials' results" in output and "Did you mean" in output


@pytest.mark.slow
def test_pruned_trial_has_no_result(folder: Store, tmp_path: Path) -> None:
    log = tmp_path / "log"
    values = [float(v) for v in range(1, 13)]
    path = write(
        tmp_path,
        task="climbs",
        params={"log": str(log)},
        search={
            "params": {"x": values},
            "objective": "nc1",
            "direction": "maximize",
            "sampler": "random",
            "trials": 12,
            "batch": 4,
            "prune": {"rule": "median", "metric": "height", "from_step": 2, "startup": 4},
        },
    )
    run(path, folder, "--workers", "1")
    (batches,) = proposals(folder).values()
    first, second, third = [[proposal["x"] for proposal in batch] for batch in batches]
    remaining = [*first, *(x for x in second if x >= statistics.median(first))]
    remaining += [x for x in third if x >= statistics.median(remaining)]
    assert len(remaining) < 12, "this seed prunes something"
    assert results_of(folder).sql("select x from results order by x").fetchall() == [(x,) for x in sorted(remaining)]
    steps = Counter(float(line.split()[0]) for line in log.read_text().splitlines())
    assert {x: n for x, n in steps.items() if x not in remaining} == {x: 2 for x in values if x not in remaining}
    before = log.read_text()
    assert "12 proposed" in run(path, folder).output and log.read_text() == before
    assert f'"num_trials": {len(remaining)}' in invoke("status", "--store", folder.root, "--json").output


@pytest.mark.slow
def test_pruning_keeps_others_bitwise(folder: Store, tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "name": "s",
        "task": "collapse",
        "params": {"arch": "rn1", "depth": 2, "samples_per_class": 5, "steps": 40, "width": 16},
        "search": {
            "params": {"lr": {"low": 0.001, "high": 1, "log": True}},
            "objective": "objective",
            "trials": 12,
            "batch": 6,
        },
    }
    path = tmp_path / "s.yaml"
    pruned_store, whole_store = Store(folder.root + "-pruned"), Store(folder.root + "-whole")
    spec["search"]["prune"] = {"rule": "halving", "metric": "objective", "from_step": 4, "factor": 2}
    path.write_text(yaml.safe_dump(spec))
    run(path, pruned_store, "--workers", "1")
    remaining = results_of(pruned_store).sql("select trial_id from trials").fetchall()
    assert 6 <= len(remaining) < 12
    del spec["search"]["prune"]
    spec["search"] |= {
        "sampler": "grid",
        "params": {"lr": [v["lr"] for b in proposals(pruned_store).popitem()[1] for v in b]},
    }
    path.write_text(yaml.safe_dump(spec))
    run(path, whole_store, "--workers", "1")
    query = "select * exclude (attempt_id) from metrics order by trial_id, step, layer"
    pruned, whole = [results_of(store).sql(query).to_arrow_table().to_pylist() for store in (pruned_store, whole_store)]
    ours = {trial_id for (trial_id,) in remaining}
    assert pruned == [row for row in whole if row["trial_id"] in ours]


def test_two_launches_that_proposed_at_once_lose_nothing(folder: Store) -> None:
    one, two = SearchRecords(folder, "s"), SearchRecords(folder, "s")
    one.write(Batch("a" * 16, 0, ({"x": 1.0},), (("t1",),)))
    two.write(Batch("a" * 16, 0, ({"x": 2.0},), (("t2",),)))
    one.refresh()
    two.refresh()
    assert one.batches("a" * 16) == two.batches("a" * 16) and len(one.batches("a" * 16)[0]) == 2


@pytest.mark.timeout(600)
@pytest.mark.slow
def test_kills_lose_no_proposal(bowl: tuple[Path, Store, str], tmp_path: Path) -> None:
    path, quiet, _ = bowl
    store = Store(str(tmp_path / "store"))
    rng, kills = random.Random(1), 0
    command = [sys.executable, "-m", "depthrate", "run", str(path), "--store", store.root, "--workers", "2"]
    while True:
        launch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if kills < int(os.environ.get("DEPTHRATE_KILLS", "2")):
            before = len(list(Path(store.root).glob("searches/*/*/*.json")))
            while launch.poll() is None and len(list(Path(store.root).glob("searches/*/*/*.json"))) == before:
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.4))
            if launch.poll() is None:
                launch.send_signal(signal.SIGKILL)
                kills += 1
        output = launch.communicate()[0]
        if launch.returncode == 0:
            break
        assert launch.returncode == -signal.SIGKILL, output
    assert kills >= 2, "the search ended before it was killed often enough"
    assert proposals(store) == proposals(quiet)
    rows = sum(pq.read_metadata(file).num_rows for file in Path(store.root).glob("trials/*/*.parquet"))
    assert rows == 56, "a trial was committed twice"
    query = "select trial_id, x, depth, seed, nc1 from results order by trial_id"
    assert open_results(store.root).sql(query).fetchall() == open_results(quiet.root).sql(query).fetchall()


@pytest.mark.slow
def test_export_to_an_optuna_storage(bowl: tuple[Path, Store, str], tmp_path: Path) -> None:
    _, folder, _ = bowl
    url = f"sqlite:///{tmp_path}/search.db"
    result = invoke("export", "s", url, "--store", folder.root)
    assert result.exit_code == 0 and "wrote study 's depth = 8'" in result.output
    study = optuna.load_study(study_name="s depth = 2", storage=url)
    query = "select x, nc1 from results where seed = 0 and depth = 2 and nc1 is not null order by nc1 limit 1"
    (best_result,) = results_of(folder).sql(query).fetchall()
    assert len(study.trials) == 12 and (study.best_params["x"], study.best_value) == best_result
    assert study.trials[0].user_attrs["trial_ids"]
    again = invoke("export", "s", url, "--store", folder.root)
    assert again.exit_code == 2 and "already exists in" in again.output


def test_impossible_objective_is_refused(folder: Store, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    no_sql = "not an SQL expression"
    for objective, message in (("nc7", "nc7"), ("nc1; drop table x", no_sql), ("nc1 +", no_sql), ("loss", "last_loss")):
        search = {"params": {"lr": [0.1, 0.2]}, "objective": objective}
        spec = {"name": "s", "task": "collapse", "params": {"arch": "rn1", "depth": 2}, "search": search}
        path.write_text(yaml.safe_dump(spec))
        result = invoke("run", path, "--store", folder.root)
        assert result.exit_code == 2 and message in result.output, result.output
    assert not Path(folder.root).exists()


@pytest.mark.slow
def test_the_report_shows_the_search(bowl: tuple[Path, Store, str], tmp_path: Path) -> None:
    _, folder, _ = bowl
    page = tmp_path / "report.html"
    assert invoke("report", "s", "--store", folder.root, "-o", page).exit_code == 0
    text = page.read_text()
    assert "best x" in text and "nc1 against x" in text and "search: 4 studies of 12 proposals" in text


@pytest.mark.slow
def test_the_reports_results_are_those_that_were_chosen(bowl: tuple[Path, Store, str]) -> None:
    """Most of the 12 proposals per depth were bad, and the curve of the objective over depth excludes them."""
    _, folder, _ = bowl
    checked, _ = find_sweep("s", folder)
    _, view = with_search(checked, folder)
    assert view is not None
    results = results_of(folder)
    status = sweep_status("s", [trial.trial_id for trial in checked.trials], results.snapshot, folder)
    data = read_report(checked, status, results, Fits(), [], view)
    chosen = {trial.trial_id for trial in view.trials_to_fit()}
    assert set(data.results["trial_id"]) == chosen and 0 < len(chosen) < len(data.trials)


def test_a_search_of_nothing_is_none() -> None:
    assert sweep_of_spec({"name": "s", "task": "collapse", "search": None}).search is None
