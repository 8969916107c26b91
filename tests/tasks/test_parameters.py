"""Parameters are checked, typed and explained before anything starts."""

from typing import Annotated, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from depthrate.tasks.function_task import schema_of_function
from depthrate.tasks.parameters import (
    REQUIRED,
    Filler,
    Parameter,
    ParameterError,
    Parameters,
    ParameterSchema,
    changed,
    parameter,
)


def of_kind(kind, **changes):
    return Parameter(name="depth", kind=kind, **changes)


def same(found, expected):
    """Equal in value and in type, sign of zero and items included."""
    return repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("kind", "given", "canonical"),
    [
        ("int", 3, 3),
        ("int", 3.0, 3),
        ("float", 1, 1.0),
        ("float", 2.5, 2.5),
        ("float", -0.0, 0.0),
        ("str", "relu", "relu"),
        ("bool", False, False),
        ("list[int]", [1, 2.0], [1, 2]),
        ("list[int]", (), []),
        ("list[float]", (1, -0.0), [1.0, 0.0]),
    ],
)
def test_values_are_brought_to_one_form(kind, given, canonical):
    assert same(of_kind(kind).check(given), canonical)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("int", 1.5),
        ("int", True),
        ("int", "3"),
        ("int", None),
        ("int", float("nan")),
        ("int", float("inf")),
        ("float", True),
        ("float", "0.1"),
        ("float", float("nan")),
        ("float", float("-inf")),
        ("float", 10**400),
        ("str", 3),
        ("str", None),
        ("bool", 1),
        ("bool", "true"),
        ("list[int]", 3),
        ("list[int]", "12"),
        ("list[int]", [1, True]),
        ("list[int]", [1.5]),
        ("list[float]", [None]),
        ("list[float]", {"a": 1}),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_wrong_types_are_refused_with_what_is_allowed(kind, given):
    allowed = {"int": "an int", "float": "a number", "str": "a str", "bool": "true or false"}
    allowed |= {"list[int]": "a list of ints", "list[float]": "a list of numbers"}
    with pytest.raises(ParameterError) as caught:
        of_kind(kind).check(given)
    given_text = "null" if given is None else repr(given)
    assert f"parameter 'depth' is {given_text}, expected {allowed[kind]}" in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "kind", "good", "bad", "message"),
    [
        ({"minimum": 1}, "int", 1, 0, "depth' is 0, expected an int >= 1"),
        ({"minimum": 0, "exclusive_minimum": True}, "float", 1e-9, 0, "depth' is 0, expected a number > 0"),
        ({"minimum": 0, "maximum": 1}, "float", 1, 1.01, "is 1.01, expected a number >= 0 and <= 1"),
        ({"maximum": 1}, "float", -5, 2, "expected a number <= 1"),
        ({"minimum": 0}, "list[int]", [0, 4], [3, -1], r"is \[3, -1\], expected a list of ints >= 0"),
        ({"pattern": "all|sample:[0-9]+"}, "str", "sample:4", "sample:4x", "'sample:4x', expected a str matching all"),
        ({"choices": ("rn1", "rn2")}, "str", "rn1", "rn3", "'rn3', expected one of rn1, rn2 .did you mean 'rn"),
        ({"choices": (2, 4)}, "int", 4.0, 3, "is 3, expected one of 2, 4"),
        ({"nullable": True}, "int", None, "x", "is 'x', expected an int or null"),
    ],
)
def test_ranges_patterns_and_choices(limits, kind, good, bad, message):
    checked = of_kind(kind, **limits)
    assert checked.check(good) == good
    with pytest.raises(ParameterError, match=message):
        checked.check(bad)


SCHEMA = ParameterSchema(
    [
        Parameter(name="depth", kind="int", doc="number of blocks"),
        Parameter(name="lr", kind="float", default=0.1, fusible=True),
        Parameter(name="steps", kind="list[int]", default=[1, 2]),
    ]
)


def test_fill_types_every_parameter_and_adds_defaults():
    assert same(SCHEMA.fill({"lr": 1, "depth": 2.0}), {"depth": 2, "lr": 1.0, "steps": [1, 2]})
    SCHEMA.fill({"depth": 1})["steps"].append(3)
    assert SCHEMA.fill({"depth": 1})["steps"] == [1, 2], "defaults are not shared between trials"
    assert Filler(SCHEMA, later=["depth"]).fill({"lr": 1})["depth"] is REQUIRED and SCHEMA.fusible == {"lr"}
    with pytest.raises(ParameterError, match=r"missing parameter 'depth' \(number of blocks\)"):
        SCHEMA.fill({"lr": 0.1})


ANYTHING = st.sampled_from([1, 1.0, True, 0, 0.0, -0.0, -1, "1", None, [1], [True], [1.0], [], float("nan"), 10**400])
GIVEN = st.dictionaries(st.sampled_from([*SCHEMA, "dept"]), ANYTHING, max_size=4)


def outcome(fill, params):
    try:
        return repr(fill(params))
    except ParameterError as error:
        return str(error)


def one_by_one(params):
    """The plain definition: names first, then each parameter in the schema's order."""
    for name in params:
        SCHEMA.require_known(name, "params")
    if "depth" not in params:
        return SCHEMA.fill(params)  # its message is tested below
    return {name: p.check(params[name]) if name in params else p.default for name, p in SCHEMA.items()}


@given(st.lists(GIVEN, max_size=20))
def test_filling_in_many_is_filling_in_each(many):
    filler = Filler(SCHEMA)
    for params in many:
        assert outcome(filler.fill, params) == outcome(SCHEMA.fill, params) == outcome(one_by_one, params)


def test_many_fills_check_once(monkeypatch):
    check, checked = Parameter.check, []
    monkeypatch.setattr(Parameter, "check", lambda self, value: checked.append(value) or check(self, value))
    filler, steps = Filler(SCHEMA), [1, 2]
    filled = [filler.fill({"depth": depth, "steps": steps}) for depth in (2, 3, 2, 3)]
    assert checked == [2, steps, 3]
    filled[0]["steps"].append(3)
    assert steps == filled[1]["steps"] == filler.fill({"depth": 2, "steps": steps})["steps"] == [1, 2]


def test_an_unknown_parameter_gets_the_nearest_name():
    message = r"unknown parameter 'dept' in params .did you mean 'depth'\?.*Known: depth, lr, steps"
    with pytest.raises(ParameterError, match=message):
        SCHEMA.fill({"depth": 1, "dept": 2})


def test_a_function_gives_its_schema():
    def law(
        *,
        depth: int,
        rate: float = 1,
        name: str = "a",
        flag: bool = False,
        sizes: list[int] | None = None,
        weights: list[float] = [1],  # noqa: B006
        norm: Literal["post", "pre"] = "post",
        order: Literal[1, 2] | None = None,
        seed: Optional[int] = 0,  # noqa: UP045
        context=None,
    ):
        return depth

    schema = schema_of_function(law)
    kinds = {name: (p.kind, p.nullable, p.choices) for name, p in schema.items()}
    assert kinds == {
        "depth": ("int", False, None),
        "rate": ("float", False, None),
        "name": ("str", False, None),
        "flag": ("bool", False, None),
        "sizes": ("list[int]", True, None),
        "weights": ("list[float]", False, None),
        "norm": ("str", False, ("post", "pre")),
        "order": ("int", True, (1, 2)),
        "seed": ("int", True, None),
    }
    assert schema.fusible == {"seed"}
    assert same(schema.fill({"depth": 1})["weights"], [1.0]) and same(schema.fill({"depth": 1})["rate"], 1.0)


def no_annotation(*, depth):
    return depth


def a_mapping(*, depth: dict):
    return depth


def two_types(*, depth: int | str):
    return depth


def mixed_choices(*, depth: Literal[1, "a"]):
    return depth


def wrong_default(*, depth: int = None):  # noqa: RUF013
    return depth


def loose(**anything: int):
    return anything


_MISUNDERSTOOD = "argument 'depth' (is annotated|has no annotation).*expected int, float"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_annotation, f"'no_annotation': {_MISUNDERSTOOD}"),
        (a_mapping, f"'a_mapping': {_MISUNDERSTOOD}"),
        (two_types, f"'two_types': {_MISUNDERSTOOD}"),
        (mixed_choices, f"'mixed_choices': {_MISUNDERSTOOD}"),
        (wrong_default, "'depth' is null, expected an int"),
        (loose, "'loose' takes .*anything, but every parameter needs a name and a type"),
    ],
)
def test_arguments_that_are_not_understood_are_refused(function, message):
    with pytest.raises(ParameterError, match=message):
        schema_of_function(function)


def test_stored_values_gain_defaults():
    eps = Parameter(name="eps", kind="float", default=1, added_later=True)
    schema = ParameterSchema([of_kind("int"), eps, Parameter(name="width", kind="int", default=8)])
    assert same(schema.added_later, {"eps": 1.0})
    assert schema.completed({"depth": 2}) == {"depth": 2, "eps": 1.0}
    assert schema.completed({"depth": 2, "eps": None}) == {"depth": 2, "eps": None}


Shared = Annotated[Literal["ce", "mse"], parameter("ce", doc="what is minimised")]


class Base(Parameters):
    depth: int = parameter(minimum=1, doc="blocks")
    rate: float | None = parameter(None, above=0, fusible=True)
    loss: Shared
    phases: list[int] = parameter([1], added_later=True)


class Fixed(Base):
    seed: int = parameter(0, is_random_seed=True)
    loss: Shared = parameter("mse")
    rate = 0.5

    @property
    def phases(self):
        return [self.depth]


def test_a_class_declares_the_schema_in_its_order():
    assert list(Base.schema) == ["depth", "rate", "loss", "phases"]
    depth, rate, loss, phases = Base.schema.values()
    assert (depth.kind, depth.default, depth.minimum, depth.doc) == ("int", REQUIRED, 1, "blocks")
    assert (rate.kind, rate.nullable, rate.exclusive_minimum, rate.fusible) == ("float", True, True, True)
    assert (loss.kind, loss.choices, loss.default, loss.doc) == ("str", ("ce", "mse"), "ce", "what is minimised")
    assert (phases.kind, phases.default, phases.added_later) == ("list[int]", [1], True)


def test_subclass_defaults_and_fixed_values():
    assert list(Fixed.schema) == ["depth", "loss", "seed"] and Fixed.schema["seed"].is_random_seed
    assert Fixed.schema["loss"].default == "mse" and Fixed.schema["loss"].doc == "what is minimised"
    assert Base.schema["loss"].default == "ce"
    trial = Fixed.from_params(Fixed.schema.fill({"depth": 3}))
    assert (trial.depth, trial.loss, trial.rate, trial.phases) == (3, "mse", 0.5, [3])


def test_attribute_access_and_changed_copies():
    trial = Base.from_params(Base.schema.fill({"depth": 2.0}))
    other = changed(trial, depth=5)
    assert (trial.depth, other.depth, other.loss) == (2, 5, "ce") and type(other) is Base
    with pytest.raises(AttributeError, match="detph"):
        _ = trial.detph
    with pytest.raises(AttributeError, match="depth"):
        _ = Base.from_params({}).depth


def test_an_annotation_that_no_parameter_has_is_refused():
    with pytest.raises(ParameterError, match="argument 'what' is annotated <class 'dict'>, expected int, float"):

        class Wrong(Parameters):
            what: dict = parameter({})


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("bool", "yes", True),
        ("bool", "Off", False),
        ("str", "no", "no"),
        ("str", 0.001, "'x' is 0.001, expected a str .quote it in YAML"),
        ("str", True, "quote it"),
        ("bool", "maybe", "'x' is 'maybe', expected true or false"),
        ("scalar", "off", "'off', expected .*Write true or false, or annotate the argument as str"),
        ("scalar", "gelu", "gelu"),
    ],
)
def test_yaml_words_are_text_or_booleans(kind, value, result):
    parameter = Parameter(name="x", kind=kind)
    if isinstance(result, bool) or result == value:
        assert same(parameter.check(value), result)
    else:
        with pytest.raises(ParameterError, match=result):
            parameter.check(value)
