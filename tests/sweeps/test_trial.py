"""A trial's identity never changes by accident."""

import copy
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import load_sweep, sweep_of_spec
from depthrate.sweeps.trial import CanonicalWriter, Trial, TrialMaker, canonical_json, varying_parameters
from tests.support.trial_ids import trial_id_of

PARAMS = {"depth": 4, "exponent": 0.5, "seed": 0}
GOLDEN_QUICKSTART = "5c64b702e458d20b"  # of version 3 of the task
GOLDEN_DEFAULTS = "712c2b8e69e2c217"
GOLDEN_LAW = "88a29750c8bb7a3e"


def trials_of(**params):
    return expand(sweep_of_spec({"name": "x", "task": "collapse", "params": params}))


def test_golden_ids():
    """If this fails, results in every store lose their trials: raise the task's version instead."""
    fixed = {"steps": 12_000, "normalize": "global"}  # here, since the file may change
    first = expand(load_sweep("quickstart", fixed))[0]
    assert first.trial_id == GOLDEN_QUICKSTART
    assert trials_of(arch="rn2", depth=3)[0].trial_id == GOLDEN_DEFAULTS
    assert trial_id_of("my_laws:power_law", 3, PARAMS) == GOLDEN_LAW


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"lr": 1}, {"lr": 1.0}),
        ({"weight_decay": 0}, {"weight_decay": -0.0}),
        ({"width": 64.0}, {}),
        ({"lr": None}, {}),
    ],
)
def test_the_same_value_written_differently_is_one_trial(one, other):
    first, second = (trials_of(arch="rn1", depth=3, **changes)[0] for changes in (one, other))
    assert first.trial_id == second.trial_id


@pytest.mark.parametrize("change", [{"depth": 5}, {"seed": 1}, {"exponent": 0.5000000000000001}, {"extra": None}])
def test_any_other_value_is_another_trial(change):
    others = [trial_id_of("law", 1, PARAMS | change), trial_id_of("law", 2, PARAMS), trial_id_of("other", 1, PARAMS)]
    assert trial_id_of("law", 1, PARAMS) not in others


TEXTS = st.text('aé\u2028\U0001f600"%{}\\\n ', max_size=3)
ODD = st.sampled_from([0, 1, True, False, 0.0, -0.0, 1.0, "1", "true", "", None])
SCALARS = st.one_of(ODD, st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
VALUES = SCALARS | st.lists(SCALARS, max_size=3)


@st.composite
def many_params(draw):
    """Mappings with one set of names, whose values are the very same objects again and again, or equal ones."""
    names = draw(st.lists(TEXTS, unique=True, max_size=5))
    values = draw(st.lists(VALUES, min_size=1, max_size=4))
    one = st.sampled_from(values) | st.sampled_from(values).map(copy.deepcopy) | VALUES
    return names, draw(st.lists(st.fixed_dictionaries({name: one for name in names}), max_size=6))


def plainly(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


@given(many_params())
@pytest.mark.slow
def test_writing_many_gives_the_text_of_writing_each(case):
    names, mappings = case
    writer, some = CanonicalWriter(names), CanonicalWriter(names[1:])
    for params in mappings:
        assert writer.write(params) == canonical_json(params) == plainly(params)
        assert some.write(params) == plainly({name: params[name] for name in names[1:]})


@given(many_params(), TEXTS, st.integers(0, 99))
def test_making_many_gives_the_ids_of_the_definition(case, task, version):
    names, mappings = case
    maker = TrialMaker(task, version, names)
    for params in mappings:
        text = plainly({"task": task, "task_version": version, "params": params})
        trial_id = hashlib.sha256(text.encode()).hexdigest()[:16]
        assert maker.make(params) == Trial(trial_id, task, version, params)
        assert trial_id_of(task, version, params) == trial_id


def test_changed_list_is_encoded_again():
    steps, writer = [1], CanonicalWriter(["steps"])
    assert writer.write({"steps": steps}) == '{"steps":[1]}'
    steps.append(2)
    assert writer.write({"steps": steps}) == '{"steps":[1,2]}'
    writer, params = CanonicalWriter(["lr"]), {"lr": float("nan")}
    for _ in range(2):
        with pytest.raises(ValueError, match="not JSON compliant"):
            writer.write(params)


def test_what_varies_between_trials():
    trials = [Trial("", "law", 1, {"depth": d, "lr": lr, "n": 300 + d - d}) for d, lr in ((2, 1), (2, 1.0), (3, 1))]
    assert varying_parameters(trials) == ["depth", "lr"] and varying_parameters(trials[:1]) == []
