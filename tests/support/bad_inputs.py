"""What users give by mistake: sweeps and command lines, as rows (name, input, a piece of the message)."""

from collections import deque
from collections.abc import Iterator
from typing import Any

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
    "infinite": float("inf"),
    "no number": float("nan"),
}
"""Values of every kind, most of which suit no parameter."""


def bad_parameters() -> Iterator[Row]:
    """Each parameter of the task `collapse` with two values that its schema does not accept, by turns of another kind."""
    odd = deque(ODD.items())
    for name, parameter in registered_tasks()["collapse"].schema.items():
        odd.rotate(1)
        rows: list[Row] = []
        for what, value in odd:
            try:
                parameter.check(value)
            except ParameterError:
                given_elsewhere = {"depth": {"grid"}, "seed": {"seeds"}}.get(name, set())
                content = {key: part for key, part in TINY.items() if key not in given_elsewhere}
                rows.append((f"{name} {what}", content | {"params": {**TINY["params"], name: value}}, f"'{name}' is"))
        yield from rows[:2]


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
    for params, piece in (
        ({"engine": "eager"}, "'engine' in params is a key of the sweep, not a parameter: move it next to params"),
        ({"widht": 3}, "unknown parameter 'widht' in params (did you mean 'width'?)"),
        ({"depth": 2}, "parameter 'depth' is set in grid and in params"),
        ({"dataset": "stl10"}, "data set 'stl10' not found in"),
        (
            {"depth": [2, 3]},
            "'depth' is [2, 3], expected an int >= 1. For one trial per value, write grid: {depth: [2, 3]}",
        ),
        ({"lr": [0.1, 0.2]}, "For one trial per value, write grid: {lr: [0.1, 0.2]}"),
        ({"optimizer": ["sgd", "adam"]}, "write grid: {optimizer: ['sgd', 'adam']}"),
        ({"depth": {"range": [2, 5]}}, "write grid: {depth: {'range': [2, 5]}}"),
        ({"samples_per_class": 1000}, "the smallest class of 'digits' has 174"),
    ):
        yield f"params {params}", {"params": {"arch": "rn1", **params}}, piece
    for key in ("grids_", "Params", "sweep", "", "nmae", "seed", "parameters", "trials"):
        yield f"key {key!r}", {key: {}}, "unknown key"


def bad_axes() -> Iterator[Row]:
    """Axes that name no values; tests/sweeps/test_sweep.py has more."""
    several = {"range": [3], "linspace": [1, 2, 3]}
    for value in (3, None, [], {}, {"logspace": [0, 1, 3]}, {"linspace": [1, 2, 10**9]}, {"range": [10**9]}, several):
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
1 +
a\0b
\ud800
"""


def bad_formulas() -> Iterator[Row]:
    """Entries of `derive` that are no arithmetic over parameters (more in tests/sweeps/test_expression.py) or have no value."""
    for text, piece in _OF_FORMULA.items():
        yield f"derive {text!r:.30}", {"derive": {"lr": text}}, piece
    for text in NO_ARITHMETIC.strip().splitlines():
        yield f"derive {text!r:.30}", {"derive": {"lr": text}}, "expected numbers, parameter names"
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
        "x_min": [0, -1, "least", True, [1], float("nan")],
        "unconverged": ["leave", 3, True],
        "target": [0, -1, "low", True, float("nan")],
    }
    for key, values in wrong.items():
        for value in values:
            yield f"fit {key} {value!r:.30}", {"fit": [{"metric": "nc1", key: value}]}, "fit"
    yield "fit unknown key", {"fit": [{"metric": "nc1", "layers": 2}]}, "unknown key 'layers' in fit"


_SEARCHES = (
    ("objective", "nc11", "is not an SQL expression over results"),
    ("objective", "\ud800", "contains invalid characters"),
    ("sampler", "tpee", "expected one of tpe, random"),
    ("trials", 10**12, "at most 1,000,000 are allowed"),
    ("prune", {"metric": "loss", "rule": "half"}, "did you mean 'halving'?"),
    ("measure", "best", "search.measure"),
    ("parmas", {}, "unknown key 'parmas' in search (did you mean 'params'?)"),
    ("params", {"rl": [1]}, "unknown parameter 'rl' in search.params (did you mean 'lr'?"),
    ("params", {"lr": {"low": 0.1, "high": 1, "step": 1e-300}}, "lr"),
)
"""(Key, value, a piece of the message); tests/sweeps/test_search_space.py has more."""


def bad_searches() -> Iterator[Row]:
    """Searches that cannot be made."""
    good = {"params": {"lr": {"low": 0.01, "high": 1.0}}, "objective": "nc1", "trials": 2}
    fixed = {"grid": {}, "params": {**TINY["params"], "depth": 2}, "fit": []}
    for key, value, piece in _SEARCHES:
        yield f"search {key} {value!r:.40}", fixed | {"search": {**good, key: value}}, piece


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
        for name, change, piece in rows():
            # no YAML has half a surrogate pair, so its parser refuses it, by line and column
            yield name, change, "invalid Unicode character escape code" if "\\ud800" in ascii(change) else piece


Said = tuple[list[str], str]
WITH_ARGUMENTS = ("run", "plan", "fit", "report", "export", "cancel", "logs", "debug", "query")
ABOUT_A_STORE = {
    "status": [],
    "query": ["select 1"],
    "logs": ["abc"],
    "cancel": ["s"],
    "compact": [],
    "verify": [],
    "fit": ["quickstart"],
    "report": ["quickstart"],
    "debug": ["abc"],
    "export": ["quickstart", "sqlite:///x.db"],
}
NO_PLACES = ("nosuch://x", "s3://bucket//x", "s3://", "s3:///x", "github://x", "reference://x", "generic://x", "a\0b")
NO_SELECT = """
;
select * from trials; select 1
drop table trials
insert into trials values (1)
update trials set sweep = 'x'
delete from trials
create table x (a int)
copy trials to 'x.csv'
attach 'x.db'
install httpfs
load httpfs
set threads = 1
pragma database_list
call pragma_version()
export database 'x'
import database 'x'
vacuum
"""
NO_VALUE = """
select * from nothing
select nc11 from results
select 1 /
select sum(trial_id) from trials
select getenv('HOME')
explain
with x as select 1
selct 1
select
"""
NO_FILES = """
select * from 'x.csv'
select * from read_csv('/etc/passwd')
select * from glob('*')
"""


def bad_arguments(store: str) -> Iterator[Row]:
    """Command lines, those that need one about the store at `store`."""
    for verb in (*WITH_ARGUMENTS, "compact", "verify", "status", "tasks"):
        yield f"{verb} --nonsense", [verb, "--nonsense"], "No such option"
    for verb in WITH_ARGUMENTS:
        yield f"{verb} alone", [verb], "Missing argument"
    yield "another verb", ["rnu"], "No such command"
    for verb, words in ABOUT_A_STORE.items():
        yield f"{verb} nowhere", [verb, *words, "--store", "nowhere"], "no store at"
        yield from ((f"{verb} {url!r}", [verb, *words, "--store", url], "cannot open") for url in NO_PLACES)
    for verb in ("run", "plan"):
        for url in NO_PLACES:
            message = "without NUL" if "\0" in url else "cannot open"
            yield f"{verb} {url!r}", [verb, "quickstart", "--store", url], message
    for given in (_of_launches, _of_runs):
        yield from ((f"{' '.join(words)}", words, piece) for words, piece in given())
    yield from ((f"{' '.join(words)}", [*words, "--store", store], piece) for words, piece in _of_queries())
    yield from ((f"{' '.join(words)}", [*words, "--store", store], piece) for words, piece in _of_a_store())


def _of_launches() -> Iterator[Said]:
    for verb in ("run", "plan"):
        for words, piece in (
            (["quickstrat"], "did you mean 'quickstart'"),
            ([""], "sweep file '' does not exist"),
            (["nothing.yaml"], "does not exist"),
            (["nothing.py:f"], "does not exist"),
            (["a\0b.yaml"], "does not exist"),
            (["quickstart", "--set", "depth"], "expected KEY=VALUE"),
            (["quickstart", "--set", "=3"], "expected KEY=VALUE"),
            (["quickstart", "--set", "depht=3"], "unknown parameter"),
            (["quickstart", "--set", "optimizer=AdamW"], "did you mean 'adamw'?"),
            (["quickstart", "--seeds", "5"], "Set a parameter or key of the sweep with --set seeds=VALUE."),
            (["quickstart", "--worker", "5"], "'--workers'"),
            (["quickstart", "--set", "depth=[1"], "not YAML"),
            (["quickstart", "--set", "name=../x"], "expected at most 100 letters, digits"),
            (["quickstart", "--set", "depth=0"], "'depth'"),
            (["quickstart", "--executor", "pbs"], "executor is 'pbs'"),
            (["quickstart", "--executor", ""], "executor is ''"),
            (["quickstart", "--cluster", "x.toml"], "--cluster needs"),
            (["quickstart", "--address", "auto"], "--address needs --executor ray"),
            (["quickstart", "--executor", "slurm", "--cluster", "none.toml"], "none.toml"),
            (["quickstart", "--workers", "0"], "workers is 0"),
            (["quickstart", "--workers", "-3"], "workers is -3"),
            (["quickstart", "--workers", "two"], "for '--workers'"),
            (["quickstart", "--device", "tpu"], "device is 'tpu'"),
            (["quickstart", "--code-version", "abc"], "no store at"),
            (["quickstart", "more"], "unexpected extra argument"),
        ):
            yield [verb, *words], piece


def _of_runs() -> Iterator[Said]:
    yield ["run", "."], "is a folder"
    yield ["run", "quickstart", "--resume"], "No such option '--resume'. depthrate run SWEEP resumes by itself"
    yield ["run", "quickstart", "--dry-run"], "without starting them: depthrate plan SWEEP"
    yield ["plan", "quickstart", "--store", "memory://x"], "exists only in this process"
    yield ["report", "quickstart", "--compare", "x"], "To compare two sweeps: depthrate compare SWEEP SWEEP"
    yield ["tasks", "collaps"], "unknown task 'collaps'"
    for words, piece in (
        (["--detach"], "--detach needs"),
        (["--checkpoint-seconds", "-1"], "for '--checkpoint-seconds'"),
        (["--checkpoint-seconds", "soon"], "for '--checkpoint-seconds'"),
        (["--checkpoint-seconds", "nan"], "for '--checkpoint-seconds'"),
        (["--stall-minutes", "-1"], "for '--stall-minutes'"),
        (["--stall-minutes", "soon"], "for '--stall-minutes'"),
        (["--rerun", "--keep-results"], "are mutually exclusive"),
        (["--store", "memory://x"], "exists only in this process"),
        (["--store", "/proc/nowhere"], "cannot write to store"),
        (["--store", "bad.yaml/x"], "cannot write to store"),
    ):
        yield ["run", "quickstart", *words], piece


def _of_queries() -> Iterator[Said]:
    pieces = {"the store is read-only. Pass one SELECT": NO_SELECT, "Views: trials, metrics": NO_VALUE}
    pieces |= {"file system operations are disabled": NO_FILES}
    for piece, statements in pieces.items():
        yield from ((["query", sql], piece) for sql in statements.strip().splitlines())
    yield ["query", ""], "Pass one SELECT"
    yield ["query", "select '\ud800'"], "contains invalid characters"
    yield ["query", "select 1", "--format", "xml"], "is not one of"
    yield ["query", "select 1", "--json", "--format", "csv"], "are mutually exclusive"
    yield ["query", "select 1", "-o", "rows.xml"], "has the extension .xml"
    yield ["query", "select 1", "-o", "/dev/null/rows.csv"], "/dev/null"
    yield ["query", "select 1", "-o", ""], "it is a folder"
    yield ["query", "select 1", "-o", "."], "it is a folder"
    yield ["query", "select 1", "-o", "a\0b.csv"], "for '-o'"


def _of_a_store() -> Iterator[Said]:
    yield ["compact", "--retain-hours", "-1"], "for '--retain-hours'"
    yield ["compact", "--retain-hours", "soon"], "for '--retain-hours'"
    yield ["compact", "--retain-hours", "nan"], "for '--retain-hours'"
    yield ["status", "nothing"], "does not exist"
    yield ["cancel", "nothing"], "no sweep 'nothing' was launched"
    yield ["cancel", "../s"], "no sweep '../s' was launched"
    yield ["logs", "nothing"], "no attempt in"
    yield ["debug", "nothing"], "0 trials"
    yield ["run", "quickstart", "--code-version", "abc"], "abc"
    yield ["report", "nothing"], "does not exist"
    yield ["report", "quickstart", "-o", "."], "it is a folder"
    yield ["report", "quickstart", "-o", ""], "it is a folder"
    yield ["report", "quickstart", "-o", "/dev/null/r.html"], "/dev/null"
    yield ["report", "quickstart", "-o", "a\0b"], "for '-o'"
    yield ["report", "quickstart", "--figures", "bad.yaml"], "bad.yaml"
    yield ["report", "quickstart", "--dark"], "--dark needs"
    yield ["fit", "nothing"], "does not exist"
    yield ["export", "quickstart", "nothing://x"], "has no search"
    for words, piece in (
        (["--layer", "1.5"], "fit layer is 1.5, expected an int"),
        (["--layer", "last"], "for '--layer'"),
        (["--target", "low"], "for '--target'"),
        (["--target", "0"], "target is"),
        (["--x-min", "-1"], "x_min is"),
        (["--unconverged", "leave"], "unconverged is"),
        (["--metric", "nc11"], "unknown metric"),
        (["--x", "dpeth"], "unknown parameter"),
        (["--by", "dpeth"], "unknown parameter"),
        (["--where", "nc1 >"], "is not an SQL expression over results"),
    ):
        yield ["fit", "quickstart", *words], piece
