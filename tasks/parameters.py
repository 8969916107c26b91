"""The parameters of a task: declared as an annotated class, checked before anything starts. Importable without torch.

    class LawParameters(Parameters):
        depth: int = parameter(minimum=1, doc="number of blocks")
        lr: float | None = parameter(None, above=0, fusible=True, doc="learning rate; null: 0.1")
        loss: Literal["ce", "mse"] = parameter("ce", doc="what is minimised")

`LawParameters.schema` has their checks, types and docs, from which tables, JSON schemas and identities follow; the task's code
reads the attributes of `LawParameters.of(params)`.
"""

from __future__ import annotations

import copy
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypedDict, TypeVar, Unpack

Kind = Literal["int", "float", "str", "bool", "scalar", "list[int]", "list[float]"]

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "scalar": "a number, a text, or true or false",
    "list[int]": "a list of whole numbers",
    "list[float]": "a list of numbers",
}


LARGEST = 1e300
"""Numbers beyond this, infinity and nan are refused: they do not survive arithmetic and storage."""
MAX_NAMES_SHOWN = 25
"""Names that a message shows."""
_MAX_VALUE_LENGTH = 500
"""Characters of a value that a message shows."""


class ParameterError(ValueError):
    """A parameter is unknown, missing, of the wrong type or out of range."""


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the known name closest to `name`, ignoring case, or an empty string."""
    folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    return f"; did you mean {folded[matches[0]]!r}?" if matches else ""


def format_names(names: Iterable[str]) -> str:
    """Return a task's parameters or measurements as a message names them: not all where they are many."""
    all_names = list(names)
    rest = (
        f" and {len(all_names) - MAX_NAMES_SHOWN} more, which depthrate tasks lists"
        if len(all_names) > MAX_NAMES_SHOWN
        else ""
    )
    return ", ".join(all_names[:MAX_NAMES_SHOWN]) + rest


def format_value(value: Any) -> str:
    """Return a value as a message shows it: its repr, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print such whole numbers, by themselves and inside of a list
        text = "a value with a whole number of thousands of digits"
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a task: its type, range, default and a line of documentation."""

    name: str
    kind: Kind
    default: Any = REQUIRED
    """`REQUIRED`, or the value a trial has when nothing is said."""
    doc: str = ""
    choices: Collection[Any] | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    """Whether `minimum` itself is refused."""
    pattern: str | None = None
    """A regular expression the whole text must match."""
    nullable: bool = False
    fusible: bool = False
    """Whether trials that differ only in this parameter may share a pack."""
    is_random_seed: bool = False
    """Whether it seeds a random draw: intervals say over which draws they are."""
    added_later: bool = False
    """Whether the task gained it later: its default gives what there was before, and a trial with it is the trial of before."""

    def __post_init__(self) -> None:
        """Check the default of an added parameter: identities rest on it.

        Raises:
            ParameterError: it has none, or one that the parameter does not accept.
        """
        if not self.added_later:
            return
        if self.default is REQUIRED:
            raise ParameterError(
                f"parameter {self.name!r} is added and has no default; give the value that reproduces what the task did "
                "before, which is what the trials that are already committed have"
            )
        object.__setattr__(self, "default", self.check(self.default))

    @property
    def allowed(self) -> str:
        """What the parameter accepts, in words."""
        if self.choices is not None:
            text = "one of " + ", ".join(map(str, self.choices))
        else:
            text = _EXPECTED[self.kind]
            if self.minimum is not None:
                text += f" {'>' if self.exclusive_minimum else '>='} {self.minimum:g}"
            if self.maximum is not None:
                text += f"{' and' if self.minimum is not None else ''} <= {self.maximum:g}"
            if self.pattern is not None:
                text += f" matching {self.pattern}"
        return text + (" or null" if self.nullable else "")

    def check(self, value: Any) -> Any:
        """Return `value` in its canonical type (1 becomes 1.0 for a float).

        Raises:
            ParameterError: the value has the wrong type or lies outside the allowed range.
        """
        if value is None and self.nullable:
            return None
        canonical = self._typed(value)
        numbers = canonical if isinstance(canonical, list) else [canonical]
        if (
            (self.choices is not None and canonical not in self.choices)
            or (self.pattern and isinstance(canonical, str) and not re.fullmatch(self.pattern, canonical))
            or not all(self._in_range(number) for number in numbers if not isinstance(number, str | bool))
        ):
            raise self._refusal(value, canonical)
        return canonical

    def _typed(self, value: Any) -> Any:
        if self.kind.startswith("list"):
            if not isinstance(value, list | tuple):
                raise self._refusal(value)
            return [self._scalar(item, self.kind[5:-1], value) for item in value]
        return self._scalar(value, self.kind, value)

    def _scalar(self, value: Any, kind: str, given: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
        if kind == "int" and is_number and value == int(value):
            return int(value)
        if kind == "float" and is_number:
            return float(value) + 0.0  # -0.0 and 0.0 are one value, hence one trial
        if kind == "str" and isinstance(value, str) and _is_text(value):
            return value
        if kind == "bool" and isinstance(value, bool):
            return value
        if kind == "scalar" and (is_number or isinstance(value, bool) or (isinstance(value, str) and _is_text(value))):
            return value
        raise self._refusal(given)

    def _in_range(self, number: float) -> bool:
        if self.minimum is not None:
            if number < self.minimum or (self.exclusive_minimum and number == self.minimum):
                return False
        return self.maximum is None or number <= self.maximum

    def _refusal(self, value: Any, canonical: Any = None) -> ParameterError:
        given = "null" if value is None else format_value(value)
        hint = nearest(canonical, map(str, self.choices)) if self.choices and isinstance(canonical, str) else ""
        numbers = value if isinstance(value, list | tuple) else [value]
        is_huge = any(isinstance(number, int | float) and abs(number) >= LARGEST for number in numbers)
        bound = f", of magnitude below {LARGEST:g}" if is_huge else ""
        return ParameterError(f"parameter {self.name!r} is {given}; allowed: {self.allowed}{bound}{hint}")


Result = TypeVar("Result")


def _is_text(value: str) -> bool:
    """Whether a text can be written down: no half of a surrogate pair, and no NUL, which ends a text elsewhere."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


class OncePerObject(Generic[Result]):
    """A function that computes once for the very same object, which a grid repeats in many trials.

    By identity, because 1, 1.0 and True are equal but not the same parameter, and a list has no hash.
    """

    def __init__(self, compute: Callable[[Any], Result]):
        self._compute = compute
        self._known: dict[int, tuple[Any, Result]] = {}

    def __call__(self, value: Any) -> Result:
        """Return what the function gives for this object, from memory if it was asked before."""
        remembered = self._known.get(id(value))
        if remembered is None:
            remembered = self._known[id(value)] = value, self._compute(value)  # kept: a freed object's id is used again
        return remembered[1]


class ParameterSchema(Mapping[str, Parameter]):
    """All parameters of a task, in order, with the check of a whole trial."""

    def __init__(self, parameters: Iterable[Parameter]):
        self._parameters = {parameter.name: parameter for parameter in parameters}

    def __getitem__(self, name: str) -> Parameter:
        return self._parameters[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    @property
    def fusible(self) -> frozenset[str]:
        """Names of the parameters that may differ within a pack."""
        return frozenset(name for name, parameter in self.items() if parameter.fusible)

    @property
    def added_later(self) -> dict[str, Any]:
        """Parameters that the task gained later, each with what trials of before have: they are no part of a trial's
        identity there."""
        return {name: parameter.default for name, parameter in self.items() if parameter.added_later}

    def completed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters that a trial was stored with, and those that the task gained since."""
        return {**self.added_later, **params}

    def require_known(self, name: str, where: str) -> Parameter:
        """Return the parameter called `name`.

        Raises:
            ParameterError: there is none; the message names the nearest known one.
        """
        if name not in self:
            raise ParameterError(
                f"unknown parameter {name!r} in {where}{nearest(name, self)} (known: {format_names(self)})"
            )
        return self[name]

    def fill(self, params: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
        """Return every parameter of one trial, checked, typed and with defaults filled in; `later` may be missing.

        Raises:
            ParameterError: a parameter is unknown, missing, of the wrong type or out of range.
        """
        return Filler(self, later).fill(params)


class Filler:
    """Fills in the parameters of many trials; a value that comes again is checked once."""

    def __init__(self, schema: ParameterSchema, later: Collection[str] = ()):
        """Fill in parameters of `schema`; those in `later` may be missing, and keep a placeholder if they are."""
        self._schema, self._later = schema, later
        self._defaults = {name: parameter.default for name, parameter in schema.items()}
        self._lists = [name for name, parameter in schema.items() if parameter.kind.startswith("list")]
        self._checks = {name: OncePerObject(parameter.check) for name, parameter in schema.items()}
        self._ordered: dict[tuple[str, ...], list[tuple[str, OncePerObject[Any]]]] = {}

    def fill(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return every parameter of one trial, as `ParameterSchema.fill` does.

        Raises:
            ParameterError: a parameter is unknown, missing, of the wrong type or out of range.
        """
        names = tuple(params)
        if names not in self._ordered:  # what is said of the names alone holds for every trial that gives the same ones
            self._ordered[names] = self._checks_of(names)
        filled = self._defaults.copy()
        for name, check in self._ordered[names]:
            filled[name] = check(params[name])
        for name in self._lists:
            filled[name] = copy.copy(filled[name])  # a task may change its list; other trials must not see that
        return filled

    def _checks_of(self, names: tuple[str, ...]) -> list[tuple[str, OncePerObject[Any]]]:
        """Return the checks in the schema's order, so that of several wrong values the first there is named."""
        for name in names:
            self._schema.require_known(name, "params")
        for name, parameter in self._schema.items():
            if parameter.default is REQUIRED and name not in names and name not in self._later:
                raise ParameterError(
                    f"missing parameter {name!r} ({parameter.doc or parameter.allowed}); give it under 'params' or 'grid'"
                )
        return [(name, check) for name, check in self._checks.items() if name in names]


class _ParameterOptions(TypedDict, total=False):
    doc: str
    choices: Collection[Any]
    minimum: float
    above: float
    """The same, but the bound itself is refused."""
    maximum: float
    pattern: str
    fusible: bool
    is_random_seed: bool
    added_later: bool


class _Declared(dict[str, Any]):
    """What a class says of one parameter, beside its name and its type."""


def parameter(default: Any = REQUIRED, **said: Unpack[_ParameterOptions]) -> Any:
    """Declare a parameter in a class of `Parameters`; name, type and choices come from the annotation (see `Parameter`).

    A declaration that several tasks share stands in the type, as in `Loss = Annotated[str, parameter("ce", ...)]`; what a class
    says of a parameter of such a type goes before.
    """
    return _Declared(said if default is REQUIRED else {"default": default, **said})


class Parameters:
    """What a task's trials have, as attributes; a class below declares each with `parameter`, in the order tables show them.

    A class below that gives an inherited parameter a plain value does not take it: it is a constant there.
    """

    schema: ClassVar[ParameterSchema]

    def __init_subclass__(cls) -> None:
        """Make the schema of what the class declares, and of what it inherits."""
        inherited = getattr(cls, "schema", {})
        own = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
        hints = typing.get_type_hints(cls, include_extras=True)
        declared = {
            name: value for name, value in inherited.items() if isinstance(own.get(name, _Declared()), _Declared)
        }
        for name in inspect.get_annotations(cls):
            shared = [part for part in getattr(hints[name], "__metadata__", ()) if isinstance(part, _Declared)]
            if not shared and not isinstance(own.get(name), _Declared):
                continue
            said = {key: value for part in (*shared, own.pop(name, {})) for key, value in part.items()}
            declared[name] = _declared(name, hints[name], said, cls.__name__)
            if name in vars(cls):
                delattr(cls, name)  # else a trial that lacks it would have the declaration
        cls.schema = ParameterSchema(declared.values())

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Return a trial's checked parameters (`ParameterSchema.fill`) as attributes; they are not copied."""
        made = object.__new__(cls)
        made.__dict__ = params if isinstance(params, dict) else dict(params)
        return made


ParametersT = TypeVar("ParametersT", bound=Parameters)


def changed(parameters: ParametersT, **changes: Any) -> ParametersT:
    """Return the parameters of another trial, which differs in these."""
    return type(parameters).from_params({**vars(parameters), **changes})


def _declared(name: str, hint: Any, said: dict[str, Any], owner: str) -> Parameter:
    if "above" in said:
        said |= {"minimum": said.pop("above"), "exclusive_minimum": True}
    kind, nullable, choices = kind_of_hint(typing.get_args(hint)[0] if _is_annotated(hint) else hint, name, owner)
    return Parameter(name=name, kind=kind, nullable=nullable, **({"choices": choices} | said))


def _is_annotated(hint: Any) -> bool:
    return typing.get_origin(hint) is Annotated


PYTHON_TYPES: dict[Kind, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list[int]": list[int],
    "list[float]": list[float],
}


def kind_of_hint(hint: Any, name: str, owner: str) -> tuple[Kind, bool, tuple[Any, ...] | None]:
    """Return (kind, nullable, choices) of an annotation: int, float, str, bool, list[int], list[float], Literal[...], each
    also `| None`.

    Raises:
        ParameterError: it is another one.
    """
    nullable = False
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        nullable = len(options) < len(typing.get_args(hint))
        hint = options[0] if len(options) == 1 else hint
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        kinds = {type(choice).__name__ for choice in choices}
        if len(kinds) == 1 and kinds <= {"int", "float", "str", "bool"}:
            return typing.cast(Kind, kinds.pop()), nullable, choices
    for kind, python_type in PYTHON_TYPES.items():
        if hint == python_type:
            return kind, nullable, None
    has_none = hint is None or hint is inspect.Parameter.empty
    raise ParameterError(
        f"task {owner!r}: argument {name!r} {'has no annotation' if has_none else f'is annotated {hint!r}'}; allowed: int, "
        f"float, str, bool, list[int], list[float], Literal[...], each also '| None', as in `{name}: float = 1.0`"
    )
