"""What users give by mistake: a table of (what is given, a piece of what is said about it)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from here import TINY

from depthrate.tasks.builtin import builtin_tasks
from depthrate.tasks.schema import ParameterError

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
    for name, parameter in builtin_tasks()["collapse"].schema.items():
        for what, value in ODD.items():
            if what in ("list", "mapping", "huge"):
                continue  # of another shape: an axis, or refused by the reader
            try:
                parameter.check(value)
            except ParameterError:
                yield f"{name} {what}", {"params": {**TINY["params"], name: value}} | _without(name), f"'{name}'"


def _without(name: str) -> dict[str, Any]:
    """Return what else has to be said so that a parameter is given once."""
    return {"grid": {"width": [16]}, "params": {}} if name == "never" else ({"grid": {}} if name == "depth" else {})


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
    yield "zip of two lengths", {"zip": {"lr": [0.1, 0.2], "momentum": [0.8]}}, "one length"
    for name in ("dpeth", "Depth", "", "depth ", "a\0b"):
        yield f"grid {name!r}", {"grid": {name: [1]}}, "unknown parameter"
        yield f"exclude {name!r}", {"exclude": [{name: 1}]}, "unknown parameter"
        yield f"include {name!r}", {"include": [{name: 1}]}, "unknown parameter"
        yield f"derive {name!r}", {"derive": {name: "1"}}, "unknown parameter"


_OF_FORMULA = {
    "0.1 / dept": "'dept' is not a parameter; did you mean 'depth'?",
    "0.1 / (depth - 2)": "divides by zero where depth = 2",
    "9**9**9": "is too large a number",
    "1e308 * 1e308": "has no finite real value",
    "(0 - depth) ** 0.5": "has no real value where depth = 2",
    "1" + "0" * 600: "at most 500 are allowed",
    "arch": "which is 'rn1', not a number",
}


def bad_formulas() -> Iterator[Row]:
    """Entries of `derive` that are no arithmetic over parameters, or have no value."""
    for text in (
        *(
            "0.1 / dept",
            "0.1 / (depth - 2)",
            "__import__('os').system('true')",
            "depth.real",
            "depth[0]",
            "lambda: 1",
            "1 +",
        ),
        *(
            "(1",
            "'a'",
            "depth if depth else 1",
            "depth and 1",
            "not depth",
            "[depth]",
            "{depth}",
            "depth = 2",
            "depth == 2",
        ),
        *(
            "9**9**9",
            "1e308 * 1e308",
            "(0 - depth) ** 0.5",
            "1" + "0" * 600,
            "f'{depth}'",
            "depth @ 2",
            "~depth",
            "depth << 9",
        ),
        *("a\0b", "\ud800", "arch", "depth := 3", "True", "None", "...", "b'1'", "1j", "depth; 1", "print(depth)"),
    ):
        yield (
            f"derive {text!r:.30}",
            {"derive": {"lr": text}},
            _OF_FORMULA.get(text, "allowed: numbers, parameter names"),
        )
    for value in (True, None, [1], {"a": 1}):
        yield f"derive {value!r}", {"derive": {"lr": value}}, "derive: lr"
    yield "derive in a circle", {"derive": {"lr": "momentum", "momentum": "lr"}}, "in a circle"


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


_OF_SEARCH = dict.fromkeys(("nc11", "nc1 >", "a\0b", "\ud800"), "is no SQL expression over results")


def bad_searches() -> Iterator[Row]:
    """Searches that cannot be made."""
    good = {"params": {"lr": {"low": 0.01, "high": 1.0}}, "objective": "nc1", "trials": 2}
    wrong: dict[str, list[Any]] = {
        "params": [
            3,
            None,
            {},
            {"rl": [1]},
            {"lr": 3},
            {"lr": []},
            {"lr": {"low": 1}},
            {"lr": {"low": 1, "high": 0.5}},
        ],
        "objective": [3, None, "", [], "nc11", "nc1 >", ["nc1", 3], "a\0b", "\ud800"],
        "direction": ["down", 3, ["minimize", "maximize"], []],
        "sampler": ["tpee", 3, None, True],
        "trials": [0, -1, 1.5, "many", True, 10**12],
        "batch": [0, -1, 1.5, "many", True, 10**12],
        "seed": [-1, 1.5, "a", True],
        "prune": [3, "median", {}, {"metric": 3}, {"metric": "loss", "rule": "half"}, {"metric": "loss", "factor": 1}],
        "measure": [3, "best", {"params": 3}, {"seed": 3}],
        "parmas": [{}],
    }
    for key, values in wrong.items():
        for value in values:
            yield (
                f"search {key} {value!r:.40}",
                {"grid": {}, "params": {**TINY["params"], "depth": 2}, "fit": []} | {"search": {**good, key: value}},
                "",
            )
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
        yield (
            f"search {name}",
            {"grid": {}, "params": {**TINY["params"], "depth": 2}, "fit": [], "search": search},
            "lr",
        )


_OF_FILE = {
    "nothing": "this is missing",
    "null": "this is missing",
    "a number": "this is the value 3",
    "a list": "this is a list",
    "a text": "this is the text 'quickstart'",
    "a key twice": "stands twice in one mapping",
    "a key that is a number": "is not a text; quote it",
    "a bomb": "write fewer aliases",
    "many digits": "a whole number of 5,000 digits",
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


def bad_arguments(store: str) -> Iterator[Row]:
    """Command lines, some about a store that is there."""
    verbs = ("run", "plan", "fit", "report", "export", "cancel", "logs", "debug", "query", "diff")
    for verb in (*verbs, "compact", "verify", "status", "tasks"):
        yield f"{verb} --nonsense", [verb, "--nonsense"], "No such option"
    for verb in verbs:
        yield f"{verb} alone", [verb], "Missing argument"
    needs = {"status": [], "query": ["select 1"], "logs": ["abc"], "cancel": ["s"], "compact": [], "verify": []}
    needs |= {"fit": ["quickstart"], "report": ["quickstart"], "debug": ["abc"], "diff": ["a", "b"]}
    for verb, words in needs.items():
        for url in ("nowhere", "nosuch://x", "s3://bucket//x", "s3://", "github://x", "reference://x", "a\0b"):
            piece = "there is no store at" if url == "nowhere" else "cannot open"
            yield f"{verb} --store {url!r}", [verb, *words, "--store", url], piece
    for verb in ("run", "plan"):
        for url in ("nosuch://x", "s3://bucket//x", "s3:///x", "github://x", "generic://x", "a\0b"):
            yield f"{verb} quickstart --store {url!r}", [verb, "quickstart", "--store", url], "cannot open"
        for words, piece in (
            (["quickstrat"], "did you mean 'quickstart'"),
            (["nothing.yaml"], "does not exist"),
            (["."], "is a folder"),
            (["nothing.py:f"], "does not exist"),
            (["quickstart", "--set", "depth"], "give KEY=VALUE"),
            (["quickstart", "--set", "=3"], "give KEY=VALUE"),
            (["quickstart", "--set", "depht=3"], "unknown parameter"),
            (["quickstart", "--set", "depth=[1"], "not YAML"),
            (["quickstart", "--set", "name=../x"], "cannot name a folder"),
            (["quickstart", "--executor", "pbs"], "executor 'pbs'"),
            (["quickstart", "--executor", ""], "executor ''"),
            (["quickstart", "--cluster", "x.toml"], "--cluster goes with"),
            (["quickstart", "--address", "auto"], "--address goes with --executor ray"),
            (["quickstart", "--workers", "0"], "workers is 0"),
            (["quickstart", "--workers", "-3"], "workers is -3"),
            (["quickstart", "--workers", "two"], "should be a valid integer"),
            (["quickstart", "--device", "tpu"], "device 'tpu'"),
            (["quickstart", "--code", "abc"], "there is no store"),
            (["quickstart", "more"], "unexpected extra argument"),
        ):
            yield f"{verb} {' '.join(words)}", [verb, *words], piece
    for words, piece in (
        (["--detach"], "--detach goes with"),
        (["--checkpoint-seconds", "-1"], "should be greater than or equal to"),
        (["--checkpoint-seconds", "soon"], "should be a valid number"),
        (["--stall-minutes", "-1"], "should be greater than or equal to"),
        (["--stall-minutes", "soon"], "should be a valid number"),
        (["--rerun", "--accept-code"], "contradict"),
        (["--store", "memory://x"], "lives in one process"),
        (["--store", "/proc/nowhere"], "cannot be written"),
    ):
        yield f"run quickstart {' '.join(words)}", ["run", "quickstart", *words], piece
    yield from ((f"{' '.join(words)!r:.60}", [*words, "--store", store], piece) for words, piece in _about_a_store())


_SQL = {
    "give one SELECT; the store is read-only": (
        *("", ";", "select * from trials; select 1", "drop table trials", "insert into trials values (1)"),
        *("create table x (a int)", "copy trials to 'x.csv'", "attach 'x.db'", "install httpfs", "load httpfs"),
        *(
            "set threads = 1",
            "pragma database_list",
            "call pragma_version()",
            "export database 'x'",
            "import database 'x'",
        ),
        *("update trials set sweep = 'x'", "delete from trials"),
    ),
    "views: trials, metrics": (
        *("selct 1", "select", "select * from nothing", "select nc11 from results", "select 1 / ", "vacuum into 'x'"),
        *("select sum(trial_id) from trials", "select getenv('HOME')", "with x as select 1", "explain"),
    ),
    "file system operations are disabled": (
        *("select * from 'x.csv'", "select * from read_csv('/etc/passwd')", "select * from glob('*')"),
    ),
    "characters that are none": ("select '\ud800'",),
}


def _about_a_store() -> Iterator[tuple[list[str], str]]:
    for piece, statements in _SQL.items():
        yield from ((["query", sql], piece) for sql in statements)
    yield from ((f"{' '.join(words)!r:.60}", [*words, "--store", store], piece) for words, piece in _about_a_store())


def _about_a_store() -> Iterator[tuple[list[str], str]]:
    for sql in (
        *(
            "",
            ";",
            "selct 1",
            "select",
            "select * from nothing",
            "select nc11 from results",
            "select * from trials; select 1",
        ),
        *("drop table trials", "insert into trials values (1)", "create table x (a int)", "copy trials to 'x.csv'"),
        *(
            "select * from 'x.csv'",
            "select * from read_csv('/etc/passwd')",
            "attach 'x.db'",
            "install httpfs",
            "load httpfs",
        ),
        *(
            "set threads = 1",
            "pragma database_list",
            "select '\ud800'",
            "select 1 / ",
            "select sum(trial_id) from trials",
        ),
        *(
            "call pragma_version()",
            "export database 'x'",
            "select * from glob('*')",
            "import database 'x'",
            "vacuum into 'x'",
        ),
        *(
            "update trials set sweep = 'x'",
            "delete from trials",
            "select getenv('HOME')",
            "with x as select 1",
            "explain",
        ),
    ):
        yield ["query", sql], ""
    yield from (
        (["query", "select 1", "--format", "xml"], "is not one of"),
        (["query", "select 1", "--json", "--format", "csv"], "contradict"),
        (["query", "select 1", "-o", "rows.xml"], "what is .xml"),
        (["query", "select 1", "-o", "none/rows.csv"], "does not exist"),
        (["query", "select 1", "-o", ""], "it is a folder"),
        (["query", "select 1", "-o", "."], "it is a folder"),
        (["compact", "--grace", "-1"], "should be greater than or equal to"),
        (["compact", "--grace", "soon"], "should be a valid number"),
        (["status", "nothing"], "does not exist"),
        (["cancel", "nothing"], "no sweep 'nothing' was launched"),
        (["logs", "nothing"], "no attempt in"),
        (["debug", "nothing"], "0 trials"),
        (["diff", "nothing", "t1"], "0 committed trials"),
        (["diff", "t1", ""], "begin with ''"),
        (["report", "nothing"], "does not exist"),
        (["report", "quickstart", "-o", "."], "it is a folder"),
        (["report", "quickstart", "-o", "none/r.html"], "does not exist"),
        (["report", "quickstart", "--dark"], "--dark is about"),
        (["report", "quickstart", "--every", "0"], "should be greater than or equal to"),
        (["fit", "nothing"], "does not exist"),
        (["fit", "quickstart", "--layer", "1.5"], "should be a valid integer"),
        (["fit", "quickstart", "--layer", "last"], "should be a valid integer"),
        (["fit", "quickstart", "--target", "low"], "should be a valid number"),
        (["fit", "quickstart", "--target", "0"], "target is"),
        (["fit", "quickstart", "--x-min", "-1"], "x_min is"),
        (["fit", "quickstart", "--weights", "even"], "weights is"),
        (["fit", "quickstart", "--unconverged", "leave"], "unconverged is"),
        (["fit", "quickstart", "--metric", "nc11"], "unknown metric"),
        (["fit", "quickstart", "--x", "dpeth"], "unknown parameter"),
        (["fit", "quickstart", "--by", "dpeth"], "unknown parameter"),
        (["fit", "quickstart", "--where", "nc1 >"], "is no SQL expression over results"),
        (["export", "quickstart", "nothing://x"], "has no search"),
    )


def bad_sweeps() -> Iterator[Row]:
    """All rows that are sweeps: changes of the tiny sweep, or whole files."""
    for rows in (bad_parameters, bad_keys, bad_axes, bad_formulas, bad_fits, bad_searches, bad_files):
        yield from rows()
