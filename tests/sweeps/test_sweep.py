"""A sweep becomes exactly the trials it says, or a message that names the place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.expression import Expression
from depthrate.sweeps.load import sweep_of_spec
from depthrate.sweeps.spec import check_fits
from depthrate.sweeps.trial import Trial
from depthrate.tasks.metric import Metric
from depthrate.tasks.parameters import Parameter, ParameterError, ParameterSchema
from tests.support.plain_task import PlainTask
from tests.support.trial_ids import trial_id_of


def refuse_wide_and_deep(params):
    if params["depth"] * params["width"] > 10_000:
        raise ParameterError("depth times width is beyond 10000")


TASK = PlainTask(
    name="law",
    schema=ParameterSchema(
        [
            Parameter(name="depth", kind="int", minimum=1),
            Parameter(name="width", kind="int", default=64),
            Parameter(name="lr", kind="float", default=0.1),
            Parameter(name="norm", kind="str", choices=("post", "pre"), default="post"),
            Parameter(name="clip", kind="float", default=None, nullable=True),
            Parameter(name="seed", kind="int", default=0, fusible=True),
        ]
    ),
    measurements=(Metric("nc1"), Metric("nc2a")),
    does={"check_trial": refuse_wide_and_deep},
)


def sweep_of(**spec):
    return sweep_of_spec({"name": "x", "task": "collapse", **spec})


def values(names, **spec):
    """The values of some parameters, trial by trial."""
    trials = expand(sweep_of(**spec), TASK)
    return [tuple(trial.params[name] for name in names.split()) for trial in trials]


D2 = {"depth": 2}


@pytest.mark.parametrize(
    ("names", "spec", "expected"),
    [
        ("depth", {"params": D2}, [(2,)]),
        ("depth width", {"grid": {"depth": [2, 3], "width": [8, 16]}}, [(2, 8), (2, 16), (3, 8), (3, 16)]),
        ("depth width", {"zip": {"depth": [2, 3], "width": [8, 16]}}, [(2, 8), (3, 16)]),
        (
            "depth width lr",
            {"grid": {"depth": [2, 3]}, "zip": {"width": [8, 16], "lr": [1, 2]}},
            [(2, 8, 1.0), (2, 16, 2.0), (3, 8, 1.0), (3, 16, 2.0)],
        ),
        (
            "depth width norm",
            {"grid": {"depth": [2, 3]}, "grids": [{"grid": {"width": [8]}}, {"params": {"norm": "pre"}}]},
            [(2, 8, "post"), (3, 8, "post"), (2, 64, "pre"), (3, 64, "pre")],
        ),
        (
            "depth lr",
            {"params": {"lr": 0.5}, "grid": D2 | {"depth": [2]}, "include": [{"depth": 9, "lr": 3}]},
            [(2, 0.5), (9, 3.0)],
        ),
        ("depth", {"grid": {"depth": [2, 3, 5]}, "exclude": [{"depth": 3}]}, [(2,), (5,)]),
        (
            "depth width",
            {
                "grid": {"depth": [2, 3], "width": [8, 16]},
                "exclude": [{"depth": 2, "width": 16}, {"depth": 3.0, "width": 8}],
            },
            [(2, 8), (3, 16)],
        ),
        ("seed", {"params": D2, "seeds": 3}, [(0,), (1,), (2,)]),
        ("seed", {"params": D2, "seeds": [7, 3]}, [(7,), (3,)]),
        ("depth seed", {"grid": {"depth": [2, 3]}, "seeds": 2}, [(2, 0), (2, 1), (3, 0), (3, 1)]),
        ("depth", {"grid": {"depth": {"range": [2, 9, 3]}}}, [(2,), (5,), (8,)]),
        ("lr", {"params": D2, "grid": {"lr": {"linspace": [0, 0.3, 4]}}}, [(0.0,), (0.1,), (0.2,), (0.3,)]),
        (
            "lr",
            {"params": D2, "grid": {"lr": {"logspace": [1e-4, 1e-2, 5]}}},
            [(1e-4,), (0.000316227766017,), (1e-3,), (0.00316227766017,), (1e-2,)],
        ),
        ("lr", {"params": D2, "grid": {"lr": {"logspace": [0.5, 2, 1]}}}, [(0.5,)]),
        ("clip", {"params": D2, "grid": {"clip": [None, 1]}}, [(None,), (1.0,)]),
        ("lr", {"grid": {"depth": [2, 5]}, "derive": {"lr": "0.05 / depth"}}, [(0.025,), (0.01,)]),
        (
            "width lr clip",
            {"params": D2, "derive": {"clip": "lr * 2", "lr": "width / 8", "width": "depth * 4"}},
            [(8, 1.0, 2.0)],
        ),
        ("depth", {"params": {"width": 16}, "derive": {"depth": "width / 8"}}, [(2,)]),
        ("depth", {"grids": [{"grid": {"depth": [2, 3]}}, {"grid": {"depth": [3.0, 5]}}]}, [(2,), (3,), (5,)]),
        (  # an excluded combination need not be possible
            "depth width",
            {"grid": {"depth": [2, 200], "width": [8, 64]}, "exclude": [{"depth": 200, "width": 64}]},
            [(2, 8), (2, 64), (200, 8)],
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_expansion(names, spec, expected):
    assert values(names, **spec) == expected


NUMBERS = st.lists(st.sampled_from([1, 1.0, 2, 2.5, -0.0, 0, 0.0, 1e-20, 3]), min_size=1, max_size=4)


@given(NUMBERS)
@pytest.mark.slow
def test_expansion_is_each_trial_by_the_plain_definition(clips):
    spec = {"params": {"lr": 2}, "grid": {"clip": [None, *clips], "depth": [2, 3.0]}, "seeds": [4, 2, 4]}
    derive = {"width": "depth * 8 + seed"}
    sweep = sweep_of(**spec, grids=[{"zip": {"norm": ["post", "pre"]}}], derive=derive)
    expected = {}
    for clip in [None, *clips]:
        for depth in (2, 3.0):
            for norm in ("post", "pre"):
                for seed in (4, 2, 4):
                    said = {"lr": 2, "clip": clip, "depth": depth, "norm": norm, "seed": seed, "width": 1}
                    params = TASK.schema.fill(said)
                    params["width"] = TASK.schema["width"].check(Expression(derive["width"]).evaluate(params))
                    trial_id = trial_id_of("law", 1, params)
                    expected.setdefault(trial_id, Trial(trial_id, "law", 1, params))
    assert repr(list(expand(sweep, TASK))) == repr(list(expected.values()))


def seeded_task(**does):
    parameters = [
        Parameter(name="depth", kind="int"),
        Parameter(name="a_list", kind="list[int]", default=[1]),
        Parameter(name="seed", kind="int", minimum=0, default=0, is_random_seed=True),
        Parameter(name="later", kind="int", default=3, added_later=True),
        Parameter(name="zeta", kind="str", default="%\u00e9{}"),
    ]
    return PlainTask(name="law", schema=ParameterSchema(parameters), does=does)


def test_many_seeds_equal_the_definition():
    seen = []
    task = seeded_task(check_trial=lambda params: seen.append(params["seed"]))
    trials = expand(sweep_of(grid={"depth": [2, 3], "later": [3, 4]}, seeds=[7, 5, 7, 10**20, 0]), task)
    expected = []
    for depth, later in ((2, 3), (2, 4), (3, 3), (3, 4)):
        for seed in (7, 5, 10**20, 0):
            params = task.schema.fill({"depth": depth, "later": later, "seed": seed})
            trial_id = trial_id_of("law", 1, params, task.schema.added_later)
            expected.append(Trial(trial_id, "law", 1, params))
    assert list(trials) == expected and [trials[n] for n in range(-16, 0)] == expected and trials[3:9] == expected[3:9]
    assert trials.ids == [trial.trial_id for trial in expected] and len(trials) == 16
    assert trials.representatives() == expected[::4] and trials.without(set(trials.ids[1:])) == expected[:1]
    assert seen == [7, 0] * 4
    trials[0].params["a_list"].append(2)
    assert trials[1].params["a_list"] == trials[0].params["a_list"] == [1]


@pytest.mark.parametrize(
    ("does", "spec"),
    [
        ({"complete": lambda params: params.update(zeta=str(params["seed"]))}, {}),
        ({}, {"derive": {"later": "seed + 1"}}),
        ({}, {"exclude": [{"seed": 1}]}),
    ],
    ids=["complete", "derive", "exclude"],
)
def test_seed_expressions_run_per_seed(does, spec):
    trials = expand(sweep_of(params={"depth": 2}, seeds=4, **spec), seeded_task(**does))
    for trial in trials:
        params = dict(trial.params)
        assert trial.trial_id == trial_id_of("law", 1, params, {"later": 3})
        assert params["zeta"] == str(params["seed"]) if does else params["seed"] != 1 or "derive" in spec
        assert params["later"] == (params["seed"] + 1 if "derive" in spec else 3)
    assert len(trials) == (3 if "exclude" in spec else 4)


def test_a_wrong_seed_among_many_is_refused():
    with pytest.raises(SweepError, match="'seed' is -1, expected an int >= 0"):
        expand(sweep_of(params={"depth": 2}, seeds=[0, -1, 2]), seeded_task())


def test_equal_values_of_other_types():
    with pytest.raises(SweepError, match="'width' is True, expected an int"):
        expand(sweep_of(params=D2, grid={"width": [1, 1.0, True]}), TASK)


def test_every_value_is_checked_and_derived_once(monkeypatch):
    check, checked = Parameter.check, []
    monkeypatch.setattr(Parameter, "check", lambda self, value: checked.append(self.name) or check(self, value))
    found = values("depth lr", grid={"depth": [2, 4], "width": [8, 16, 32]}, derive={"lr": "1 / depth"}, seeds=50)
    assert len(found) == 300 and set(found) == {(2, 0.5), (4, 0.25)}
    assert {name: checked.count(name) for name in checked} == {"depth": 2, "width": 3, "lr": 2, "seed": 50}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"params": {"dept": 2}}, r"unknown parameter 'dept' in params .did you mean 'depth'\?"),
        ({"grid": {"with": [2]}}, r"'with' in grid .did you mean 'width'\?"),
        ({"params": D2, "zip": {"lrr": [2]}}, "'lrr' in zip .did you mean 'lr'"),
        ({"grids": [{"grid": {"dpth": [1]}}]}, r"'dpth' in grids\[0\]\.grid .did you mean 'depth'"),
        ({"grids": [{"gird": {}}]}, r"unknown key 'gird' in grids\[0\] .did you mean 'grid'"),
        ({"params": D2, "include": [{"hue": 1}]}, r"'hue' in include\[0\]"),
        ({"params": D2, "exclude": [{"hue": 1}]}, "'hue' in exclude"),
        ({"params": D2, "exclude": [{"depth": "two"}]}, "'depth' is 'two', expected an int >= 1"),
        ({}, "missing parameter 'depth'"),
        ({"params": {"depth": 0}}, "'depth' is 0, expected an int >= 1"),
        ({"grid": {"depth": [2, "3"]}}, "'depth' is '3', expected"),
        ({"params": D2, "grid": {"depth": [3]}}, "'depth' is set in grid and in params"),
        ({"grid": {"depth": [2]}, "zip": {"depth": [3]}}, "'depth' is set in grid and in zip"),
        ({"grid": {"depth": [2]}, "grids": [{"grid": {"depth": [3]}}]}, r"'depth' is set in grid and in grids\[0\]"),
        ({"params": D2, "derive": {"depth": "2"}}, "'depth' is set in derive and in params"),
        (
            {"params": D2, "grids": [{"grid": {"lr": [1]}}], "derive": {"lr": "1 / depth"}},
            "'lr' is set in derive and in .*grids",
        ),
        ({"params": D2, "include": [{"lr": 1}], "derive": {"lr": "1 / depth"}}, "'lr' is set in derive and .*include"),
        ({"params": D2, "seeds": 2, "include": [{"seed": 7}]}, "'seed' is set in .*include"),
        ({"params": D2, "seeds": 2, "grids": [{"grid": {"seed": [7]}}]}, "'seed' is set in .*grids"),
        ({"params": D2 | {"seed": 1}, "seeds": 2}, "'seed' is set in params and by seeds"),
        ({"grid": {"depth": []}}, "axis 'depth' in grid is empty"),
        ({"grid": {"depth": 3}}, "'depth' in grid is the value 3, expected a list or one of range, linspace, logspace"),
        ({"grid": {"depth": {"rang": [3]}}}, r"axis 'depth' in grid has the keys \['rang'\]"),
        ({"grid": {"depth": {"range": [1, 2.5]}}}, "range takes ints"),
        ({"grid": {"depth": {"range": [1, 5, 0]}}}, "range takes ints"),
        ({"grid": {"depth": {"range": [0]}}}, "axis 'depth' in grid is empty"),
        ({"params": D2, "grid": {"lr": {"linspace": [0, 1]}}}, r"is \[0, 1\], expected \[first, last, count\]"),
        ({"params": D2, "grid": {"lr": {"logspace": [0, 1, 3]}}}, "expected positive ends"),
        ({"params": D2, "grid": {"lr": {"logspace": ["a", 1, 3]}}}, "expected a list of numbers"),
        ({"zip": {"depth": [2, 3], "width": [8]}}, "axes in zip need the same length, .*'depth': 2, 'width': 1"),
        ({"params": D2, "seeds": 0}, "seeds is 0, expected a count from 1 to"),
        ({"params": D2, "seeds": True}, "seeds is True"),
        ({"params": D2, "seeds": [0, "a"]}, "or a list of ints"),
        ({"params": D2, "derive": {"lr": "1 / (depth - 2)"}}, r"'1 / \(depth - 2\)' divides by zero where depth = 2"),
        ({"params": D2, "derive": {"lr": "1 / dept"}}, r"lr = 1 / dept: 'dept' is not a parameter .did you mean"),
        ({"params": D2, "derive": {"lr": "max(depth, 1)"}}, "is a call"),
        ({"params": D2, "derive": {"lr": "width", "width": "lr"}}, "derive has a cycle: lr, width"),
        ({"params": D2, "derive": {"lr": "lr * 2"}}, "cycle: lr"),
        ({"params": D2, "derive": {"width": "depth / 4"}}, "width = depth / 4: parameter 'width' is 0.5, expected"),
        ({"params": D2, "derive": {"lr": [1]}}, "derive: lr is a list"),
        ({"params": D2, "derive": {"rate": "1"}}, "unknown parameter 'rate' in derive"),
        ({"params": D2, "exclude": [{"depth": 2}]}, "no trials: exclude drops every combination"),
        ({"params": {"depth": 200}}, "depth times width is beyond 10000"),
        ({"grids": D2}, "grids is a mapping, expected a list of mappings"),
        ({"params": [1]}, "params is a list, expected a mapping"),
        ({"grd": {}}, r"unknown key 'grd' in the sweep \(did you mean 'grid'"),
        ({"name": "a/b"}, "name is 'a/b', expected at most 100 letters, digits"),
        ({"name": None}, "key 'name' is missing"),
        ({"task": 3}, "key 'task' is the value 3"),
        ({"params": D2, "fit": [{"x": "depth"}]}, "metric is missing, expected a name"),
        ({"params": D2, "fit": [{"metric": "nc1", "by": "lr"}]}, "is the string 'lr', expected a list of parameter"),
        ({"params": D2, "fit": [{"metric": "nc1", "overs": "lr"}]}, "unknown key 'overs' in fit .did you mean 'over'"),
    ],
    ids=lambda part: part[:40] if isinstance(part, str) else "",
)
def test_bad_input_is_refused_with_its_place(spec, message):
    with pytest.raises(SweepError, match=message):
        expand(sweep_of(**spec), TASK)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        ({"metric": "nc3"}, r"unknown metric 'nc3' in fit \(did you mean 'nc"),
        ({"metric": "nc1", "x": "dept"}, r"unknown parameter 'dept' in fit \(did you mean 'depth'"),
        ({"metric": "nc1", "x": "norm"}, "fit over x: 'norm'.*expected a number"),
        ({"metric": "nc1", "by": ["wd"]}, "unknown parameter 'wd' in fit"),
        ({"metric": "nc1", "over": "depth"}, "fit over 'depth' is used in x or by"),
    ],
)
def test_a_fit_of_what_cannot_exist_is_refused(fit, message):
    check_fits(sweep_of(fit=[{"metric": "nc1", "by": ["lr"]}]), TASK)
    with pytest.raises(SweepError, match=message):
        check_fits(sweep_of(fit=[fit]), TASK)
