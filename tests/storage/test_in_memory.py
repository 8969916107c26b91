"""Results in memory are the same as from the store."""

import pytest

from benchmarks.store_synthetic import write_pack
from depthrate.orchestrator.analysis.fit_requests import fit_requests
from depthrate.orchestrator.analysis.observations import in_memory
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.files.store import Store
from depthrate.storage.query.sql_checks import QueryError
from depthrate.sweeps.packing import pack_trials
from depthrate.sweeps.spec import FitRequest, SweepSpec

FITS = (
    FitRequest(metric="nc1", x="width"),
    FitRequest(metric="nc3", x="width", layer=-2),
    FitRequest(metric="nc2a", x="width", layer=3, where="row_norms is null and seed < 9"),
    FitRequest(metric="objective_gap", x="width"),
)


@pytest.fixture(scope="module")
def sweep() -> SweepSpec:
    params = {"arch": "rn1", "depth": 34, "samples_per_class": 20, "steps": 8000, "measure_steps": []}
    return SweepSpec(name="held", task="collapse", params=params, grid={"width": [32, 64, 96]}, seeds=3, fit=FITS)


@pytest.fixture(scope="module")
def store(sweep: SweepSpec, tmp_path_factory: pytest.TempPathFactory) -> Store:
    store, checked = Store(str(tmp_path_factory.mktemp("store"))), check_sweep(sweep)
    for number, pack in enumerate(pack_trials(checked.trials, checked.task)):
        write_pack(store, "held", number, pack)
    return store


@pytest.mark.parametrize(
    "query",
    [
        "select trial_id, step, split, layer, is_last, nc1, nc3 from metrics order by trial_id, step, layer",
        "select * from curves order by trial_id, step",
        "select trial_id, nc1, objective_gap, width, last_lr from results order by trial_id",
        "select * from trials order by trial_id",
    ],
)
def test_a_query_gives_the_same_rows(sweep: SweepSpec, store: Store, query: str) -> None:
    results = results_of(store, check_sweep(sweep).task)
    ids = results.snapshot.trials["trial_id"].to_pylist()
    loaded = results.in_memory(ids, ["singular_values", "class_gram"])
    assert loaded.sql(query).fetchall() == results.sql(query).fetchall() != []


def test_missing_columns_and_rows(sweep: SweepSpec, store: Store) -> None:
    results = results_of(store, check_sweep(sweep).task)
    first = results.snapshot.trials["trial_id"].to_pylist()[:1]
    loaded = results.in_memory(first, ["class_gram"])
    assert {trial_id for (trial_id,) in loaded.sql("select trial_id from metrics").fetchall()} == set(first)
    with pytest.raises(QueryError, match="class_gram"):
        loaded.sql("select class_gram from metrics")


def test_the_last_layer_alone_gives_the_same_results(sweep: SweepSpec, store: Store) -> None:
    results = results_of(store, check_sweep(sweep).task)
    ids = results.snapshot.trials["trial_id"].to_pylist()
    loaded = results.in_memory(ids, ["singular_values", "class_gram"], all_layers=False)
    query = "select trial_id, layer, nc1, objective_gap, last_lr from results order by trial_id"
    assert loaded.sql(query).fetchall() == results.sql(query).fetchall() != []
    assert loaded.sql("select count(*), bool_and(is_last) from metrics").fetchall() == [(len(ids), True)]


def test_fits_are_the_same_to_the_last_bit(sweep: SweepSpec, store: Store) -> None:
    checked = check_sweep(sweep)
    results = results_of(store, checked.task)
    plain = fit_requests(results, sweep.fit, checked.trials, checked.task).curves
    from_memory = fit_requests(
        in_memory(results, sweep.fit, checked.trials.ids), sweep.fit, checked.trials, checked.task
    ).curves
    assert [curve.fits for curve in from_memory] == [curve.fits for curve in plain]
    assert [curve.rows for curve in from_memory] == [curve.rows for curve in plain]
    assert all(curve.rows for curve in plain)
