"""Command lines that make no sense: a table of (name, words, a piece of what is said about it)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.bad_inputs import Row

Said = tuple[list[str], str]
WITH_ARGUMENTS = ("run", "plan", "fit", "report", "export", "cancel", "logs", "debug", "query", "diff")
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
    "diff": ["a", "b"],
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
        yield from ((f"{verb} {url!r}", [verb, "quickstart", "--store", url], "cannot open") for url in NO_PLACES)
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
            (["quickstart", "--code", "abc"], "no store at"),
            (["quickstart", "more"], "unexpected extra argument"),
        ):
            yield [verb, *words], piece


def _of_runs() -> Iterator[Said]:
    yield ["run", "."], "is a folder"
    for words, piece in (
        (["--detach"], "--detach needs"),
        (["--checkpoint-seconds", "-1"], "for '--checkpoint-seconds'"),
        (["--checkpoint-seconds", "soon"], "for '--checkpoint-seconds'"),
        (["--checkpoint-seconds", "nan"], "for '--checkpoint-seconds'"),
        (["--stall-minutes", "-1"], "for '--stall-minutes'"),
        (["--stall-minutes", "soon"], "for '--stall-minutes'"),
        (["--rerun", "--keep-results"], "exclude each other"),
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
    yield ["query", "select 1", "--json", "--format", "csv"], "exclude each other"
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
    yield ["diff", "nothing", "t1"], "0 committed trials"
    yield ["diff", "t1", ""], "start with ''"
    yield ["run", "quickstart", "--code", "abc"], "abc"
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
        (["--layer", "1.5"], "for '--layer'"),
        (["--layer", "last"], "for '--layer'"),
        (["--target", "low"], "for '--target'"),
        (["--target", "0"], "target is"),
        (["--x-min", "-1"], "x_min is"),
        (["--weights", "even"], "weights is"),
        (["--unconverged", "leave"], "unconverged is"),
        (["--metric", "nc11"], "unknown metric"),
        (["--x", "dpeth"], "unknown parameter"),
        (["--by", "dpeth"], "unknown parameter"),
        (["--where", "nc1 >"], "is not an SQL expression over results"),
    ):
        yield ["fit", "quickstart", *words], piece
