"""Read and write typed sections of a sweep file, with error messages for invalid sections."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

import msgspec
from msgspec import structs
from msgspec.structs import FieldInfo, fields

from depthrate.sweeps.errors import SweepError, kind_of, require_keys
from depthrate.tasks.parameters import format_value, nearest

T = TypeVar("T")


class SpecSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mapping with typed fields in a sweep file. Editors show the docstring of a field."""

    ALWAYS: ClassVar[tuple[str, ...]] = ()
    """Keys that a spec contains even if their values are the defaults. Spec hashes depend on this."""
    ALLOWED: ClassVar[Mapping[str, str]] = {}
    """Descriptions of the allowed values of keys whose types do not describe them well."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with changed keys."""
        return structs.replace(self, **changes)

    def spec(self) -> dict[str, Any]:
        """Return the mapping as in a sweep file: the keys that differ from their defaults, and those in `ALWAYS`."""
        return section_spec(self, self.ALWAYS)


def read_section(section: type[T], content: Any, place: str, prefix: str = "") -> T:
    """Parse a mapping as a `SpecSection`, or as a dataclass of tasks.

    Args:
        content: The mapping.
        place: Name of the mapping in messages.
        prefix: Prefix of its keys in messages.

    Raises:
        SweepError: A key is unknown or missing, or a value is invalid. The message lists allowed values.
    """
    try:
        return msgspec.convert(content, section)
    except msgspec.ValidationError as error:
        if not isinstance(error.__cause__, SweepError):
            _refuse(section, content, place, prefix)
        raise SweepError(str(error.__cause__ or error)) from None


def section_spec(section: Any, always: Collection[str] = ()) -> dict[str, Any]:
    """Return a section as in a sweep file: the keys that differ from their defaults, and those in `always`."""
    return {
        field.name: _plain(value)
        for field in _fields(type(section))
        if not _is_default(value := getattr(section, field.name), field) or field.name in always
    }


def _fields(section: Any) -> Sequence[FieldInfo]:
    """Return the fields of a section. Tasks declare theirs as dataclasses, since msgspec has its home in sweeps."""
    if issubclass(section, msgspec.Struct):
        return fields(section)
    unset: dict[Any, Any] = {dataclasses.MISSING: msgspec.NODEFAULT}
    return [
        FieldInfo(
            name=field.name,
            encode_name=field.name,
            type=field.type,
            default=unset.get(field.default, field.default),
            default_factory=unset.get(field.default_factory, field.default_factory),
        )
        for field in dataclasses.fields(section)
    ]


def _is_default(value: Any, field: FieldInfo) -> bool:
    if field.default_factory is not msgspec.NODEFAULT:
        return not value
    return value is None if field.default is None else bool(value == field.default)


def _plain(value: Any) -> Any:
    if isinstance(value, SpecSection):
        return value.spec()
    if dataclasses.is_dataclass(value):
        return section_spec(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _refuse(part: Any, content: Any, place: str, prefix: str) -> None:
    """Raise an error for the first invalid key or value, or return if all are valid.

    msgspec reports only the expected type. The error raised here names the value and the allowed values.
    """
    names, describe = [field.name for field in _fields(part)], format_value if place.startswith("search") else kind_of
    if not isinstance(content, Mapping):
        raise SweepError(f"{place} is {describe(content)}, expected a mapping with some of the keys {', '.join(names)}")
    require_keys(content, names, place)
    for field in _fields(part):
        value, name = content.get(field.name), prefix + field.name
        if _fits(value, field.type) or (field.name not in content and not field.required):
            continue
        items = [get_args(kind)[0] for kind in _within(field.type) if get_origin(kind) is tuple]
        if (sections := _of_class(field.type, SpecSection)) and not items:
            _refuse(sections[0], value, name, f"{name}.")
        annotation, shown_value = field.type, describe(value) if field.name in content else "missing"
        for index, item in enumerate(value if items and isinstance(value, list | tuple) else ()):
            if not _fits(item, items[0]):
                annotation, value, shown_value, name = items[0], item, describe(item), f"{name}[{index}]"
                break
        if field.name in part.ALLOWED:
            raise SweepError(f"{name} is {shown_value}, {part.ALLOWED[field.name]}")
        choices = _choices(annotation)
        if choices:
            hint = nearest(value, choices) if isinstance(value, str) else ""
            raise SweepError(f"{name} is {format_value(value)}, expected one of {', '.join(choices)}{hint}")
        raise SweepError(f"{name} is {shown_value}, expected {_allowed(annotation)}")


def _choices(annotation: Any) -> list[str]:
    literals = [choice for kind in _within(annotation) if get_origin(kind) is Literal for choice in get_args(kind)]
    return literals + [member.value for kind in _of_class(annotation, Enum) for member in kind]


def _allowed(annotation: Any) -> str:
    """Describe the values that a type allows."""
    inside = list(_within(annotation))
    least = [kind.ge for kind in inside if isinstance(kind, msgspec.Meta) and kind.ge is not None]
    if least:
        return f"an int, at least {least[0]}"
    if _of_class(annotation, SpecSection) or any(get_origin(kind) is Mapping for kind in inside):
        return "a list of mappings" if any(get_origin(kind) is tuple for kind in inside) else "a mapping"
    return "true or false" if bool in inside else "a string"


def _of_class(annotation: Any, parent: type) -> list[Any]:
    return [kind for kind in _within(annotation) if isinstance(kind, type) and issubclass(kind, parent)]


def _fits(value: Any, annotation: Any) -> bool:
    try:
        msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        return False
    return True


def _within(annotation: Any) -> Iterator[Any]:
    """Yield a type and, recursively, its arguments and annotations."""
    yield annotation
    for inner in get_args(annotation):
        yield from _within(inner)
