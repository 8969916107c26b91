"""YAML as people write it in sweep files: every number a number, no key twice."""

from __future__ import annotations

import re
from typing import Any

import yaml

from depthrate.sweeps.errors import SweepError

_NUMBER_TAGS = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int")


class _Loader(yaml.SafeLoader):
    """YAML that reads 1e-4 as a number, 010 and 1:30 as texts, and refuses a key that stands twice."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBER_TAGS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\.\d[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+)$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+0123456789."),
)


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if not isinstance(key, str):
            raise SweepError(f"line {key_node.start_mark.line + 1}: key {key!r} is not a text; quote it")
        if key in seen:
            raise SweepError(f"line {key_node.start_mark.line + 1}: {key!r} stands twice in one mapping; keep one")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)


def read_yaml(text: str) -> Any:
    """Read YAML the way sweep files are read.

    Raises:
        SweepError: the text is not YAML, or a key stands twice.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise SweepError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SweepError("not YAML: nested too deeply") from None
