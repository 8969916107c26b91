"""YAML as people write it in sweep files: every number a number, no key twice, no alias that fills the memory."""

from __future__ import annotations

import re
from typing import Any

import yaml

from depthrate.sweeps.errors import SweepError, counted

MAX_DIGITS = 300
"""Of a whole number in a sweep file; no parameter takes one of more (`tasks.parameters.LARGEST`)."""
MAX_REPEATED = 100_000
"""Values that the aliases of a sweep file may stand for."""
_FLOAT_TAG, _INT_TAG = "tag:yaml.org,2002:float", "tag:yaml.org,2002:int"


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-4 as a number, 010 and 1:30 as texts, and refuses a key that stands twice."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_FLOAT_TAG, _INT_TAG)]
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


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise SweepError(f"{_line(key_node)}: key {key!r} is not a text; quote it")
        if key in seen:
            raise SweepError(f"{_line(key_node)}: {key!r} stands twice in one mapping; keep one")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


def _short_integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > MAX_DIGITS:
        raise SweepError(
            f"{_line(node)}: a whole number of {len(node.value):,} digits; at most {MAX_DIGITS} are allowed"
        )
    return loader.construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)
_Loader.add_constructor(_INT_TAG, _short_integer)


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"


def read_yaml(text: str) -> Any:
    """Read YAML the way sweep files are read.

    Raises:
        SweepError: the text is not YAML, a key stands twice, or its aliases stand for more than memory should hold.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_aliases(node)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        tab = next(
            (n for n, line in enumerate(text.splitlines(), 1) if "\t" in line[: len(line) - len(line.lstrip())]), 0
        )
        if tab:
            raise SweepError(f"line {tab}: not YAML: indented with a tab; indent with spaces") from None
        raise SweepError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SweepError("not YAML: nested too deeply") from None


def _check_aliases(root: yaml.Node) -> None:
    """Count what the document stands for with every alias written out, without writing it out."""
    sizes: dict[int, int] = {}
    written = 0

    def size(node: yaml.Node) -> int:
        nonlocal written
        if id(node) in sizes:
            if not sizes[id(node)]:
                raise SweepError(f"{_line(node)}: an alias refers to what it stands in")
            return sizes[id(node)]
        sizes[id(node)] = 0  # being counted
        here = 1 if not isinstance(node, yaml.ScalarNode) else 1 + len(node.value) // 64
        written += here
        if isinstance(node, yaml.SequenceNode):
            here += sum(map(size, node.value))
        elif isinstance(node, yaml.MappingNode):
            here += sum(size(key) + size(value) for key, value in node.value)
        sizes[id(node)] = here
        return here

    if size(root) - written > MAX_REPEATED:
        raise SweepError(
            f"{_line(root)}: with its aliases written out it has {counted(sizes[id(root)])} values, {MAX_REPEATED:,} "
            "more than stand there are allowed; write fewer aliases (*name), or the sweep in Python"
        )


def yaml_text(content: Any) -> str:
    """Return a spec as a sweep file would have it."""
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
