"""What users give by mistake: a table of (what is given, a piece of what is said about it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.registry import registered_tasks
from tests.support.here import TINY

Row = tuple[str, Any, str]
"""(name of the case, what is given, a piece of the message)."""
ODD: dict[str, Any] = {
    "text": "many",
    "empty text": "",
    "NUL": "a\0b",
    "half a pair": "\ud800",
    "fraction": 0.123,
    "minus": -7,
    "truth": True,
    "null": None,
    "list": [[1]],
    "mapping": {"a": 1},
    "infinite": float("inf"),
    "no number": float("nan"),
    "huge": 10**400,
}
"""Values of every kind, most of which suit no parameter."""


def bad_parameters() -> Iterator[Row]:
    """Each parameter of the task `collapse` with each value that its schema does not accept."""
    for name, parameter in registered_tasks()["collapse"].schema.items():
        for what, value in ODD.items():
            if what in ("list", "mapping", "huge"):
                continue  # of another shape: an axis, or refused by the reader
            try:
                parameter.check(value)
            except ParameterError:
                given_elsewhere = {"depth": {"grid"}, "seed": {"seeds"}}.get(name, set())
                content = {key: part for key, part in TINY.items() if key not in given_elsewhere}
                content["params"] = {**TINY["params"], name: value}
                yield f"{name} {what}", yaml.safe_dump(content), f"'{name}' is"


def bad_keys() -> Iterator[Row]:
    """Each key of a sweep with what it does not take."""
    wrong = {
        "name": [3, None, [], {}, "", "../x", "a/b", ".x", "-x", "x" * 101, "a b", "a\0b", "\ud800", True],
        "task": [3, None, [], {}, "", "colapse", "nowhere:f", "./nothing.py:f", "a\0b", ":", "x:", ":f", "./a\0.py:f"],
        "params": [3, "arch", ["arch"], True, 0.5],
        "grid": [3, "depth", ["depth"], True, 0.5],
        "zip": [3, "depth", ["depth"], True, 0.5],
        "derive": [3, "lr", ["lr"], True, 0.5],
        "grids": [3, "depth", {"grid": {}}, True, [3], ["a"], [None]],
        "include": [3, "depth", {"depth": 2}, True, [3], ["a"], [None]],
        "exclude": [3, "depth", {"depth": 2}, True, [3], ["a"], [None]],
        "seeds": [0, -1, 1.5, "two", True, [], ["a"], [1.5], [True], {"count": 3}, 10**9, [None]],
        "search": [3, "tpe", [], True, {}],
        "fit": [3, "nc1", {"metric": "nc1"}, True, [3], ["nc1"], [None], [{}]],
        "max_trials": [0, -1, 1.5, "many", True, [], {}],
    }
    for key, values in wrong.items():
        for value in values:
            yield f"{key} {value!r:.30}", {key: value}, key
    for key in ("grids_", "Params", "sweep", "", "nmae", "seed", "parameters", "trials"):
        yield f"key {key!r}", {key: {}}, "unknown key"


def bad_axes() -> Iterator[Row]:
    """Axes that name no values."""
    for value in (
        *(3, "2, 3", None, True, [], {}, {"logspace": [1, 2]}, {"logspace": [0, 1, 3]}, {"logspace": [1, -1, 3]}),
        *({"linspace": [1, 2, 0]}, {"linspace": [1, 2, 1.5]}, {"linspace": "a"}, {"linspace": [1, 2, True]}),
        *(
            {"range": []},
            {"range": [1, 2, 0]},
            {"range": [1.5]},
            {"range": [1, 2, 3, 4]},
            {"range": "3"},
            {"range": [10**9]},
        ),
        *({"steps": [1, 2, 3]}, {"range": [3], "linspace": [1, 2, 3]}, {"linspace": [1, 2, 10**9]}, {"range": [5, 1]}),
    ):
        yield f"grid {value!r:.40}", {"grid": {"depth": value}}, "axis 'depth' in grid"
        if value != {}:
            yield f"zip {value!r:.40}", {"grid": {}, "zip": {"depth": value}}, "axis 'depth' in zip"
    yield "zip of two lengths", {"zip": {"lr": [0.1, 0.2], "momentum": [0.8]}}, "the same length"
    for name in ("dpeth", "Depth", "", "depth ", "a\0b"):
        yield f"grid {name!r}", {"grid": {name: [1]}}, "unknown parameter"
        yield f"exclude {name!r}", {"exclude": [{name: 1}]}, "unknown parameter"
        yield f"include {name!r}", {"include": [{name: 1}]}, "unknown parameter"
        yield f"derive {name!r}", {"derive": {name: "1"}}, "unknown parameter"


_OF_FORMULA = {
    "0.1 / dept": "'dept' is not a parameter (did you mean 'depth'?)",
    "0.1 / (depth - 2)": "divides by zero where depth = 2",
    "9**9**9": "is too large a number",
    "1e308 * 1e308": "has no finite real value",
    "(0 - depth) ** 0.5": "has no real value where depth = 2",
    "1" + "0" * 600: "at most 500 are allowed",
    "arch": "which is 'rn1', not a number",
}
NO_ARITHMETIC = """
__import__('os').system('true')
depth.real
depth[0]
lambda: 1
1 +
(1
'a'
depth if depth else 1
depth and 1
not depth
[depth]
{depth}
depth = 2
depth == 2
f'{depth}'
depth @ 2
~depth
depth << 9
depth := 3
True
None
...
b'1'
1j
depth; 1
print(depth)
a\0b
\ud800
"""


def bad_formulas() -> Iterator[Row]:
    """Entries of `derive` that are no arithmetic over parameters, or have no value."""
    for text, piece in _OF_FORMULA.items():
        yield f"derive {text!r:.30}", {"derive": {"lr": text}}, piece
    for text in NO_ARITHMETIC.strip().splitlines():
        yield f"derive {text!r:.30}", {"derive": {"lr": text}}, "allowed: numbers, parameter names"
    for value in (True, None, [1], {"a": 1}):
        yield f"derive {value!r}", {"derive": {"lr": value}}, "derive: lr"
    yield "derive in a circle", {"derive": {"lr": "momentum", "momentum": "lr"}}, "has a cycle"


def bad_fits() -> Iterator[Row]:
    """Entries of `fit` that ask for what there is not."""
    wrong = {
        "metric": [3, None, "nc11", "", "depth", "singular_values", 'a"b', "\ud800"],
        "x": [3, "dpeth", "arch", "", [1]],
        "by": ["depth", ["dpeth"], [3], {"a": 1}, 3],
        "layer": [1.5, "last", True, [1], {}],
        "where": [3, ["a"], "nc1 >", "nc11 > 0", "true; drop table trials", "a\0b", "\ud800", "(", True],
        "weights": ["even", 3, True, ["equal"]],
        "x_min": [0, -1, "least", True, [1], float("nan")],
        "unconverged": ["leave", 3, True],
        "target": [0, -1, "low", True, float("nan")],
    }
    for key, values in wrong.items():
        for value in values:
            yield f"fit {key} {value!r:.30}", {"fit": [{"metric": "nc1", key: value}]}, "fit"
    yield "fit unknown key", {"fit": [{"metric": "nc1", "layers": 2}]}, "unknown key 'layers' in fit"


_RANGE = {"low": 0.01, "high": 1.0}
_SEARCHES: dict[str, tuple[list[Any], str]] = {
    "params": ([3, None, {}], "search needs params"),
    "params.lr": ([{"lr": 3}, {"lr": []}, {"lr": {"low": 1}}, {"lr": {"low": 1, "high": 0.5}}], "search.params.lr"),
    "params.rl": ([{"rl": [1]}], r"unknown parameter 'rl' in search.params (did you mean 'lr'?"),
    "objective": ([3, None, "", [], ["nc1", 3]], "Give a string or a list of strings"),
    "objective in SQL": (["nc11", "nc1 >", "a\0b"], "is not an SQL expression over results"),
    "objective of letters": (["\ud800"], "contains invalid characters"),
    "direction": (["down", 3, []], "search.direction is"),
    "direction for each": ([["minimize", "maximize"]], "1 objectives and 2 directions"),
    "sampler": (["tpee", 3, None, True], "allowed: tpe, random"),
    "trials": ([0, -1, 1.5, "many", True], "allowed: an int, at least 1"),
    "trials at most": ([10**12], "at most 1,000,000 are allowed"),
    "batch": ([0, -1, 1.5, "many", True], "allowed: an int, at least 1"),
    "batch at most": ([10**12], "at most 1,000,000 are allowed"),
    "seed": ([-1, 1.5, "a", True], "allowed: an int, at least 0"),
    "prune": ([3, "median"], "expected a mapping with some of the keys rule, metric"),
    "prune metric": ([{}, {"metric": 3}], "search.prune needs a metric"),
    "prune rule": ([{"metric": "loss", "rule": "half"}], "did you mean 'halving'?"),
    "prune factor": ([{"metric": "loss", "factor": 1}], "allowed: an int, at least 2"),
    "measure": ([3, "best", {"params": 3}], "search.measure"),
    "measure seed": ([{"seed": 3}], "did you mean 'seeds'?"),
    "parmas": ([{}], "unknown key 'parmas' in search (did you mean 'params'?)"),
}
"""What is wrong -> (values of that key, a piece of the message); the key is what stands before a space or a dot."""


def bad_searches() -> Iterator[Row]:
    """Searches that cannot be made."""
    good = {"params": {"lr": _RANGE}, "objective": "nc1", "trials": 2}
    fixed = {"grid": {}, "params": {**TINY["params"], "depth": 2}, "fit": []}
    for what, (values, piece) in _SEARCHES.items():
        key = what.split()[0].partition(".")[0]
        yield from ((f"search {what} {v!r:.40}", fixed | {"search": {**good, key: v}}, piece) for v in values)
    for name, given in {
        "log from 0": {"low": 0, "high": 1, "log": True},
        "log and step": {"low": 0.1, "high": 1, "log": True, "step": 0.1},
        "step too large": {"low": 0.1, "high": 1, "step": 7},
        "step of 0": {"low": 0.1, "high": 1, "step": 0},
        "tiny step": {"low": 0.1, "high": 1, "step": 1e-300},
        "values and range": {"low": 0.1, "values": [1]},
        "values twice": [0.1, 0.1],
        "unknown word": {"lo": 0.1, "high": 1},
        "log is a text": {"low": 0.1, "high": 1, "log": "yes"},
        "when nothing": {"low": 0.1, "high": 1, "when": {}},
        "when unknown": {"low": 0.1, "high": 1, "when": {"optimzer": "sgd"}},
    }.items():
        search = {**good, "params": {"lr": given}}
        yield f"search {name}", fixed | {"search": search}, "lr"


_OF_FILE = {
    "nothing": "the sweep is missing",
    "null": "the sweep is missing",
    "a number": "the sweep is the value 3",
    "a list": "the sweep is a list",
    "a text": "the sweep is the string 'quickstart'",
    "a key twice": "is repeated",
    "a key that is a number": "is not a string. Quote it",
    "a bomb": "Use fewer aliases",
    "many digits": "an int of 5,000 digits",
}


def bad_files() -> Iterator[Row]:
    """Sweep files that are none."""
    for name, text in {
        "nothing": "",
        "null": "null",
        "a number": "3",
        "a list": "- 1",
        "a text": "quickstart",
        "half": "a: [1",
        "tabs": "a:\n\t- 1",
        "a key twice": "name: a\nname: b",
        "a key that is a number": "1: a",
        "two documents": "name: a\n---\nname: b",
        "a tag": "name: !!python/object/apply:os.system ['true']",
        "an anchor of nothing": "name: *a",
        "a bomb": "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "\n".join(f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]" for i in range(9)),
        "many digits": f"name: a\ntask: collapse\nseeds: {'9' * 5000}",
        "a NUL": "name: a\0b",
        "control characters": "name: a\x01b",
    }.items():
        yield f"file with {name}", text, _OF_FILE.get(name, "not YAML")


def bad_sweeps() -> Iterator[Row]:
    """All rows that are sweeps: changes of the tiny sweep, or whole files."""
    for rows in (bad_parameters, bad_keys, bad_axes, bad_formulas, bad_fits, bad_searches, bad_files):
        yield from rows()
