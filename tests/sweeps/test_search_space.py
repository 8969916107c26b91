"""`search:` in a sweep file: what is understood, what is refused, and the studies it makes of a grid."""

from typing import Any

import pytest

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.load import load_sweep, sweep_of_spec
from depthrate.sweeps.spec import FinalRuns, Search, SweepSpec
from depthrate.sweeps.studies import Study, make_studies

LR = {"lr": {"low": 0.01, "high": 1, "log": True}}


def spec(search: Any = None, **more: Any) -> dict[str, Any]:
    search = {"params": LR, "objective": "nc1"} if search is None else search
    return {
        "name": "s",
        "task": "collapse",
        "params": {"arch": "rn1"},
        "grid": {"depth": [2, 3]},
        "search": search,
    } | more


def studies(search: Any = None, **more: Any) -> list[Study]:
    sweep = sweep_of_spec(spec(search, **more))
    return make_studies(sweep, sweep.load_task())


def test_one_study_for_each_combination_of_the_grid() -> None:
    found = studies(seeds=2)
    assert [study.by for study in found] == [{"depth": 2}, {"depth": 3}]
    trials = found[1].trials({"lr": 0.5})
    assert [(t.params["depth"], t.params["lr"], t.params["seed"]) for t in trials] == [(3, 0.5, 0), (3, 0.5, 1)]
    assert len({study.study_id for study in found}) == 2


def test_more_trials_keep_the_study() -> None:
    first = studies({"params": LR, "objective": "nc1", "trials": 4})
    more = studies({"params": LR, "objective": "nc1", "trials": 9}, grid={"depth": [3, 2, 8]})
    other = studies({"params": {"lr": {"low": 0.02, "high": 1, "log": True}}, "objective": "nc1"})
    ids = {study.study_id for study in first}
    assert ids < {study.study_id for study in more}
    assert not ids & {study.study_id for study in other}


def test_a_searched_parameter_may_derive_others() -> None:
    found = studies(derive={"weight_decay": "lr / 10"})
    assert found[0].trials({"lr": 0.5})[0].params["weight_decay"] == 0.05


def test_a_measurement_is_at_other_seeds_and_parameters() -> None:
    found = studies({"params": LR, "objective": "nc1", "measure": {"seeds": [7, 9], "params": {"steps": 50}}})
    trials = found[0].measured({"lr": 0.5})
    assert [(t.params["seed"], t.params["steps"], t.params["lr"]) for t in trials] == [(7, 50, 0.5), (9, 50, 0.5)]
    assert studies()[0].measured({"lr": 0.5}) == []


def test_conditions_follow_the_values_so_far() -> None:
    momentum = {"low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}}
    clip_norm = {"low": 1, "high": 2, "when": {"depth": [3]}}
    params = {"optimizer": ["sgd", "adam"], "momentum": momentum, "clip_norm": clip_norm}
    search = {"params": params, "objective": "nc1"}
    shallow, deep = studies(search)
    _, momentum, clip = shallow.dimensions
    schema = shallow.task.schema
    assert momentum.is_active({"optimizer": "sgd"}, schema) and not momentum.is_active({"optimizer": "adam"}, schema)
    assert momentum.is_active({}, schema), "the task's default is sgd"
    assert not clip.is_active(shallow.fixed, schema) and clip.is_active(deep.fixed, schema)


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ([], r"search is \[\], expected a mapping"),
        ({"params": LR}, "search.objective is missing"),
        ({"objective": "nc1"}, "search.params is missing"),
        ({"params": LR, "objective": "nc1", "samplr": "tpe"}, "unknown key 'samplr' in search .did you mean 'sampler'"),
        (
            {"params": LR, "objective": "nc1", "sampler": "tpee"},
            "search.sampler is 'tpee', expected one of tpe, .*did you mean",
        ),
        ({"params": LR, "objective": "nc1", "trials": 0}, "search.trials is 0, expected an int, at least 1"),
        ({"params": LR, "objective": "nc1", "batch": True}, "search.batch is True"),
        ({"params": LR, "objective": ["nc1", "loss"], "direction": ["minimize"] * 3}, "2 objectives and 3 directions"),
        (
            {"params": LR, "objective": "nc1", "direction": "up"},
            "search.direction is 'up', expected one of minimize, maximize",
        ),
        ({"params": LR, "objective": ["nc1", "loss"], "measure": {}}, "search.measure needs a single objective"),
        ({"params": LR, "objective": "nc1", "prune": {"rule": "median"}}, "search.prune needs a metric"),
        ({"params": {"lrr": [1]}, "objective": "nc1"}, r"unknown parameter 'lrr' in search.params \(did you mean 'lr'"),
        ({"params": {"lr": {"low": 1}}, "objective": "nc1"}, "expected low and high"),
        ({"params": {"lr": {"low": 1, "high": 1}}, "objective": "nc1"}, "expected low < high"),
        ({"params": {"lr": {"low": -1, "high": 1}}, "objective": "nc1"}, "'lr' is -1, expected a number > 0"),
        ({"params": {"weight_decay": {"low": 0, "high": 1, "log": True}}, "objective": "nc1"}, "low of a log .* is 0"),
        ({"params": {"optimizer": {"low": 0, "high": 1}}, "objective": "nc1"}, "Give a list of values"),
        ({"params": {"optimizer": ["sgd", "sgd"]}, "objective": "nc1"}, "has a value twice"),
        ({"params": {"width": {"low": 2, "high": 9, "step": 0.5}}, "objective": "nc1"}, "expected an int up to 7"),
        ({"params": {"depth": [2, 3]}, "objective": "nc1"}, "'depth' is set in search.params and in grid"),
        ({"params": {"arch": ["rn1"]}, "objective": "nc1"}, "'arch' is set in search.params and in params"),
        ({"params": LR, "objective": "nc1", "sampler": "grid"}, "sampler grid needs a list of values, or a step"),
        (
            {"params": {"momentum": {"low": 0, "high": 1, "when": {"lr": 1}}, **LR}, "objective": "nc1"},
            "`when` refers to 'lr'. Move 'lr' above it",
        ),
        ({"params": LR, "objective": "nc1", "measure": {"params": {"stps": 1}}}, "unknown parameter 'stps'"),
        ({"params": LR, "objective": "nc1", "measure": {"seeds": "x"}}, "search.measure.seeds is 'x'"),
        ({"params": {"batch_size": [1000000]}, "objective": "nc1"}, "the training set has 1797 samples"),
    ],
    ids=lambda part: str(part)[:40],
)
def test_what_cannot_run_is_refused(search: Any, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        studies(search)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(("objective", value, "a string or a list of strings") for value in (3, [], ["nc1", 3])),
        *((key, value, "expected an int, at least 1") for key in ("trials", "batch") for value in (-1, 1.5, "many")),
        *(("seed", value, "expected an int, at least 0") for value in (-1, 1.5, "a", True)),
        *(("prune", value, "expected a mapping with some of the keys rule, metric") for value in (3, "median")),
        ("prune", {"metric": "loss", "factor": 1}, "expected an int, at least 2"),
        ("measure", {"seed": 3}, "did you mean 'seeds'"),
        ("params", {"lr": {"low": 0.1, "high": 1, "log": True, "step": 0.1}}, "lr"),
        ("params", {"lr": {"low": 0.1, "high": 1, "step": 7}}, "lr"),
        ("params", {"lr": {"low": 0.1, "values": [1]}}, "lr"),
        ("params", {"lr": {"lo": 0.1, "high": 1}}, "lr"),
        ("params", {"lr": {"low": 0.1, "high": 1, "log": "yes"}}, "lr"),
        ("params", {"lr": {"low": 0.1, "high": 1, "when": {}}}, "lr"),
        ("params", {"lr": {"low": 0.1, "high": 1, "when": {"optimzer": "sgd"}}}, "lr"),
    ],
)
def test_invalid_values_are_refused(key: str, value: Any, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        studies({"params": LR, "objective": "nc1", key: value})


def test_search_survives_spec_and_overrides(tmp_path: Any) -> None:
    search = Search(LR, objective=("nc1",), measure=FinalRuns({"steps": 9}, seeds=[3]))
    written = SweepSpec(name="s", task="collapse", params={"arch": "rn1"}, grid={"depth": [2]}, search=search)
    again = sweep_of_spec(written.spec())
    assert again == written and again.spec_hash() == written.spec_hash()
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: s\ntask: collapse\nparams: {arch: rn1, depth: 2}\n"
        "search: {params: {lr: [0.1, 0.2], momentum: [0.5, 0.9]}, objective: nc1}\n"
    )
    changed = load_sweep(str(path), {"search.trials": 3, "lr": 0.7})
    assert changed.search is not None and changed.search.trials == 3
    assert list(changed.search.params) == ["momentum"] and changed.params["lr"] == 0.7
