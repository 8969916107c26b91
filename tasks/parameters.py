"""Parameters of a task: declared as an annotated class, checked before anything starts. Importable without torch.

    class LawParameters(Parameters):
        depth: int = parameter(minimum=1, doc="number of blocks")
        lr: float | None = parameter(None, above=0, fusible=True, doc="learning rate. null: 0.1")
        loss: Literal["ce", "mse"] = parameter("ce", doc="loss to minimise")

`LawParameters.schema` holds their checks, types and docs. Tables, JSON schemas and trial ids derive from it. The task's code
reads the attributes of `LawParameters.from_params(params)`.
"""

import copy
import difflib
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from depthrate.errors import InputError

Kind = Literal["int", "float", "str", "bool", "scalar", "list[int]", "list[float]"]

_EXPECTED = {
    "int": "an int",
    "float": "a number",
    "str": "a str",
    "bool": "true or false",
    "scalar": "a number, a str, or true or false",
    "list[int]": "a list of ints",
    "list[float]": "a list of numbers",
}


LARGEST = 1e300
"""Larger numbers, infinity and NaN are rejected, because arithmetic and storage do not preserve them."""
MAX_NAMES_SHOWN = 25
"""Maximum number of names in a message."""
_MAX_VALUE_LENGTH = 500
"""Maximum number of characters of a value in a message."""


_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}
"""Words for true and false that sweep files contain as str."""


class ParameterError(InputError):
    """A parameter is unknown, missing, of the wrong type or out of range."""


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED = _Required()


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean 'x'?)"` for the known name closest to `name`, ignoring case, or an empty string."""
    folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    return f" (did you mean {folded[matches[0]]!r}?)" if matches else ""


def nearest_names(name: str, known: Iterable[str]) -> str:
    """Join the three known names closest to `name`, or all names if there are at most five."""
    folded = {candidate.casefold(): candidate for candidate in known}
    if len(folded) <= 5:
        return f"Known: {', '.join(folded.values()) or 'none'}"
    return f"Nearest: {', '.join(folded[m] for m in difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0))}"


def format_names(names: Iterable[str]) -> str:
    """Join at most `MAX_NAMES_SHOWN` names of parameters or metrics for a message."""
    all_names = list(names)
    more = len(all_names) - MAX_NAMES_SHOWN
    rest = f" and {more} more, listed by depthrate tasks" if more > 0 else ""
    return ", ".join(all_names[:MAX_NAMES_SHOWN]) + rest


def format_value(value: Any) -> str:
    """Return the repr of a value, shortened for messages."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print ints with thousands of digits, even inside a list
        text = "a value with thousands of digits"
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a task: type, range, default and a line of documentation."""

    name: str
    kind: Kind
    default: Any = REQUIRED
    """Value of a trial that does not set the parameter, or `REQUIRED`."""
    doc: str = ""
    choices: Collection[Any] | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    """Whether `minimum` itself is rejected."""
    pattern: str | None = None
    """Regular expression that the whole str must match."""
    nullable: bool = False
    fusible: bool = False
    """Whether trials that differ only in this parameter may share a pack."""
    is_random_seed: bool = False
    """Whether the parameter seeds randomness. Intervals name the seeds that they cover."""
    added_later: bool = False
    """Whether the parameter was added after trials were committed. Its default reproduces these trials, whose ids do not
    change."""
    null: str = ""
    """SQL over other parameters for the value that is used in place of None, if it can be computed from them."""

    def __post_init__(self) -> None:
        """Check the default of an added parameter, because trial ids depend on it.

        Raises:
            ParameterError: The default is missing or not accepted by the parameter.
        """
        if not self.added_later:
            return
        if self.default is REQUIRED:
            raise ParameterError(
                f"parameter {self.name!r} is added and has no default. Give the value that reproduces the trials committed "
                "before."
            )
        object.__setattr__(self, "default", self.check(self.default))

    @property
    def allowed(self) -> str:
        """Description of the accepted values."""
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
            ParameterError: The value has the wrong type or is out of range.
        """
        if value is None and self.nullable:
            return None
        if isinstance(value, Mapping) and self.pattern:
            value = ", ".join(f"{name}: {part}" for name, part in value.items())
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

    def _scalar(self, value: Any, kind: str, whole_value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
        if kind == "int" and is_number and value == int(value):
            return int(value)
        if kind == "float" and is_number:
            return float(value) + 0.0  # -0.0 and 0.0 are the same value and hence the same trial
        if kind == "str" and isinstance(value, str) and _is_text(value):
            return value
        switch = _SWITCHES.get(value.lower()) if isinstance(value, str) else None
        if kind == "bool" and (isinstance(value, bool) or switch is not None):
            return value if switch is None else switch
        if kind == "scalar" and (is_number or isinstance(value, bool) or (isinstance(value, str) and _is_text(value))):
            if switch is None:  # else text or a boolean may be meant
                return value
        raise self._refusal(whole_value)

    def _in_range(self, number: float) -> bool:
        if self.minimum is not None:
            if number < self.minimum or (self.exclusive_minimum and number == self.minimum):
                return False
        return self.maximum is None or number <= self.maximum

    def _refusal(self, value: Any, canonical: Any = None) -> ParameterError:
        value_text = "null" if value is None else format_value(value)
        hint = nearest(canonical, map(str, self.choices)) if self.choices and isinstance(canonical, str) else ""
        numbers = value if isinstance(value, list | tuple) else [value]
        is_huge = any(isinstance(number, int | float) and abs(number) >= LARGEST for number in numbers)
        bound = f", of magnitude below {LARGEST:g}" if is_huge else text_fault(value)
        if self.kind == "str" and isinstance(value, bool | int | float):
            hint += " (quote it in YAML if it is text)"
        elif isinstance(value, list | tuple | range | Mapping) and not self.kind.startswith("list"):
            hint += f". For one trial per value, write grid: {{{self.name}: {value_text}}}"
        elif self.kind == "scalar" and isinstance(value, str):
            hint += ". Write true or false, or annotate the argument as str or bool."
        return ParameterError(f"parameter {self.name!r} is {value_text}, expected {self.allowed}{bound}{hint}")


Result = TypeVar("Result")


def _is_text(value: str) -> bool:
    """Return whether a str can be stored: no lone surrogates, and no NUL, which terminates strings elsewhere."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value


def text_fault(value: Any) -> str:
    """Return the condition that a str violates and so cannot be stored, to follow `Parameter.allowed`."""
    return " without NUL and lone surrogates" if isinstance(value, str) and not _is_text(value) else ""


class OncePerObject(Generic[Result]):
    """Caches a function by object identity, since a grid repeats the same objects in many trials.

    Equality would not suffice: 1, 1.0 and True are equal but are different parameters, and a list has no hash.
    """

    def __init__(self, compute: Callable[[Any], Result]):
        self._compute = compute
        self._results: dict[int, tuple[Any, Result]] = {}

    def __call__(self, value: Any) -> Result:
        """Return the function's cached value for this object."""
        cached = self._results.get(id(value))
        if cached is None:
            # The object is stored too, since the id of a freed object is reused.
            cached = self._results[id(value)] = value, self._compute(value)
        return cached[1]


class ParameterSchema(Mapping[str, Parameter]):
    """All parameters of a task, in order."""

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
        """Parameters added later, with their values in earlier trials. With these values they do not enter
        a trial's identity."""
        return {name: parameter.default for name, parameter in self.items() if parameter.added_later}

    def completed(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return a stored trial's parameters, completed by those added later."""
        return {**self.added_later, **params}

    def require_known(self, name: str, where: str) -> Parameter:
        """Return the parameter called `name`.

        Raises:
            ParameterError: No parameter has this name. The message suggests the nearest one.
        """
        if name not in self:
            raise ParameterError(
                f"unknown parameter {name!r} in {where}{nearest(name, self)}. {nearest_names(name, self)}. List all: "
                "depthrate tasks NAME."
            )
        return self[name]

    def fill(self, params: Mapping[str, Any], later: Collection[str] = ()) -> dict[str, Any]:
        """Return all parameters of one trial, checked, converted and with defaults. Parameters in `later` may be missing.

        Raises:
            ParameterError: A parameter is unknown, missing, of the wrong type or out of range.
        """
        return Filler(self, later).fill(params)


class Filler:
    """Fills in the parameters of many trials, checking each repeated value once."""

    def __init__(self, schema: ParameterSchema, later: Collection[str] = ()):
        """Fill in parameters of `schema`. Parameters in `later` may be missing and then get a placeholder."""
        self._schema, self._later = schema, later
        self._defaults = {name: parameter.default for name, parameter in schema.items()}
        self._lists = [name for name, parameter in schema.items() if parameter.kind.startswith("list")]
        self._checks = {name: OncePerObject(parameter.check) for name, parameter in schema.items()}
        self._checks_by_names: dict[tuple[str, ...], list[tuple[str, OncePerObject[Any]]]] = {}

    def fill(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return all parameters of one trial, as `ParameterSchema.fill` does.

        Raises:
            ParameterError: A parameter is unknown, missing, of the wrong type or out of range.
        """
        names = tuple(params)
        if names not in self._checks_by_names:  # trials with the same names share the checks of names
            self._checks_by_names[names] = self._checks_of(names)
        filled = self._defaults.copy()
        for name, check in self._checks_by_names[names]:
            filled[name] = check(params[name])
        for name in self._lists:
            filled[name] = copy.copy(filled[name])  # a task may change its list, which must not affect other trials
        return filled

    def check(self, name: str, value: Any) -> Any:
        """Return a value in its canonical type, checked once per object.

        Raises:
            ParameterError: The value has the wrong type or is out of range.
        """
        return self._checks[name](value)

    def _checks_of(self, names: tuple[str, ...]) -> list[tuple[str, OncePerObject[Any]]]:
        """Return the checks in the schema's order, so that errors name the first wrong parameter."""
        for name in names:
            self._schema.require_known(name, "params")
        for name, parameter in self._schema.items():
            if parameter.default is REQUIRED and name not in names and name not in self._later:
                raise ParameterError(
                    f"missing parameter {name!r} ({parameter.doc or parameter.allowed}). Set it under 'params' or 'grid'."
                )
        return [(name, check) for name, check in self._checks.items() if name in names]


class _Declared(dict[str, Any]):
    """Options of one parameter declared in a class, besides its name and type."""


def parameter(default: Any = REQUIRED, **options: Any) -> Any:
    """Declare a parameter in a class of `Parameters`, with the options of `Parameter`, or `above` for an exclusive minimum.

    Name, type and choices come from the annotation.

    Tasks share a declaration through the type, as in `Loss = Annotated[str, parameter("ce", ...)]`. Options that a class gives
    for a parameter of this type take precedence.
    """
    return _Declared(options if default is REQUIRED else {"default": default, **options})


later_parameter = functools.partial(parameter, added_later=True)
"""Declares a parameter that was added after trials were committed."""


class Parameters:
    """A trial's parameters as attributes. A subclass declares each with `parameter`, in display order.

    A subclass that assigns a plain value to an inherited parameter makes it a constant, which trials do not take.
    """

    schema: ClassVar[ParameterSchema]

    def __init_subclass__(cls) -> None:
        """Build the schema from the declared and the inherited parameters."""
        inherited = getattr(cls, "schema", {})
        attributes = {name: value for name, value in vars(cls).items() if not name.startswith("_")}
        hints = typing.get_type_hints(cls, include_extras=True)
        declared = {
            name: value for name, value in inherited.items() if isinstance(attributes.get(name, _Declared()), _Declared)
        }
        for name in inspect.get_annotations(cls):
            shared = [part for part in getattr(hints[name], "__metadata__", ()) if isinstance(part, _Declared)]
            if not shared and not isinstance(attributes.get(name), _Declared):
                continue
            options = {key: value for part in (*shared, attributes.pop(name, {})) for key, value in part.items()}
            declared[name] = _build_parameter(name, hints[name], options, cls.__name__)
            if name in vars(cls):
                delattr(cls, name)  # else a trial without the parameter would have the declaration
        cls.schema = ParameterSchema(declared.values())

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> Self:
        """Return a trial's checked parameters (`ParameterSchema.fill`) as attributes, without copying them."""
        trial = object.__new__(cls)
        trial.__dict__ = params if isinstance(params, dict) else dict(params)
        return trial


ParametersT = TypeVar("ParametersT", bound=Parameters)


def changed(parameters: ParametersT, **changes: Any) -> ParametersT:
    """Return a copy of a trial's parameters with changes."""
    return type(parameters).from_params({**vars(parameters), **changes})


def _build_parameter(name: str, hint: Any, options: dict[str, Any], owner: str) -> Parameter:
    if "above" in options:
        options |= {"minimum": options.pop("above"), "exclusive_minimum": True}
    bare_hint = typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint
    kind, nullable, choices = kind_of_hint(bare_hint, name, owner)
    return Parameter(name=name, kind=kind, nullable=nullable, **({"choices": choices} | options))


PYTHON_TYPES: dict[Kind, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list[int]": list[int],
    "list[float]": list[float],
}


def kind_of_hint(hint: Any, name: str, owner: str) -> tuple[Kind, bool, tuple[Any, ...] | None]:
    """Parse an annotation into (kind, nullable, choices): int, float, str, bool, list[int], list[float] or Literal[...], each
    also `| None`.

    Raises:
        ParameterError: The annotation is none of these.
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
        f"task {owner!r}: argument {name!r} {'has no annotation' if has_none else f'is annotated {hint!r}'}, expected int, "
        f"float, str, bool, list[int], list[float] or Literal[...], each also '| None', as in `{name}: float = 1.0`"
    )
