"""Read and write the YAML of sweep files: 1e-4 is a number, dates and `no` are strings, and repeated keys are refused."""

import re
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from depthrate.sweeps.errors import SweepError, counted

MAX_DIGITS = 300
"""Maximum number of digits of an int in a sweep file. No parameter takes more (`tasks.parameters.LARGEST`)."""
MAX_REPEATED = 100_000
"""Maximum number of values that aliases add to a sweep file."""
_TAG = "tag:yaml.org,2002:"
_FLOAT_TAG, _INT_TAG, _BOOL_TAG = f"{_TAG}float", f"{_TAG}int", f"{_TAG}bool"
_REPLACED_TAGS = (_FLOAT_TAG, _INT_TAG, _BOOL_TAG, f"{_TAG}timestamp", f"{_TAG}value")


class _Loader(Composer, yaml.cyaml.CParser, SafeConstructor, Resolver):  # type: ignore[misc, name-defined]
    """YAML loader that reads 1e-4 as a number, 010, 1:30, 2024-01-31, no and off as strings, and refuses repeated keys.

    The parser in C takes a tenth of the time. The composer in C is left out, since it crashes on deeply nested text.
    """

    def __init__(self, text: str):
        yaml.cyaml.CParser.__init__(self, text)  # type: ignore[attr-defined]
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _FLOAT_TAG,
    re.compile(
        r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\.\d[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+)$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(_INT_TAG, re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(_BOOL_TAG, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise SweepError(f"{_line(key_node)}: key {key!r} is not a string. Quote it.")
        if key in seen:
            raise SweepError(f"{_line(key_node)}: key {key!r} is repeated. Keep one.")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _short_integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > MAX_DIGITS:
        raise SweepError(f"{_line(node)}: an int of {len(node.value):,} digits, at most {MAX_DIGITS} are allowed")
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)
_Loader.add_constructor(_INT_TAG, _short_integer)


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def read_yaml(text: str) -> Any:
    """Parse YAML with the rules of sweep files.

    Raises:
        SweepError: The file is not YAML, a key is repeated, or aliases add too many values.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_aliases(node)
        return loader.construct_document(node)
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        tab = next(
            (n for n, line in enumerate(text.splitlines(), 1) if "\t" in line[: len(line) - len(line.lstrip())]), 0
        )
        if tab:
            raise SweepError(f"line {tab}: not YAML: indented with a tab. Indent with spaces.") from None
        raise SweepError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SweepError("not YAML: nested too deeply") from None


def _check_aliases(root: yaml.Node) -> None:
    """Count the values that the document would have with its aliases expanded, without expanding them."""
    sizes: dict[int, int] = {}
    written = 0

    def size(node: yaml.Node) -> int:
        nonlocal written
        if id(node) in sizes:
            if not sizes[id(node)]:
                raise SweepError(f"{_line(node)}: an alias refers to its own parent")
            return sizes[id(node)]
        sizes[id(node)] = 0  # being counted
        own_size = 1 if not isinstance(node, yaml.ScalarNode) else 1 + len(node.value) // 64
        written += own_size
        if isinstance(node, yaml.SequenceNode):
            own_size += sum(map(size, node.value))
        elif isinstance(node, yaml.MappingNode):
            own_size += sum(size(key) + size(value) for key, value in node.value)
        sizes[id(node)] = own_size
        return own_size

    if size(root) - written > MAX_REPEATED:
        raise SweepError(
            f"{_line(root)}: aliases expand to {counted(sizes[id(root)])} values, at most {MAX_REPEATED:,} more than "
            "written are allowed. Use fewer aliases (*name), or write the sweep in Python."
        )


def yaml_text(content: Any) -> str:
    """Format a spec as a sweep file."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
