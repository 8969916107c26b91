"""Every path of a store, one function each.

format.json                                                         which versions may read the store, and which may write
sweeps/<sweep>/<spec hash>.json, <spec hash>.trials                 each spec launched, whole, and its trials' identities
sweeps/<sweep>/renamed_from                                         which sweep it was, and whether its renaming is over
sweeps/<sweep>/cancel                                               when `depthrate cancel` was last called
sweeps/<sweep>/forgiven                                             nodes that are repaired, by `depthrate nodes --clear`
trials|metrics|curves|features/sweep=<sweep>/<attempt>[-<part>].parquet
attempts/sweep=<sweep>/<attempt>.json, <attempt>.log                state, heartbeat, host, job, error; what it printed
trials|metrics|curves|features|attempts/sweep=<sweep>/compact_<id>[-<part>].parquet   many of these in one
beats/sweep=<sweep>/<node>.json                                     signs of life of the attempts that run on a node
live/sweep=<sweep>/<pack>.parquet                                   what a running pack has logged; deleted after the commit
launches/sweep=<sweep>/<launch>.json, <launch>.log                  what happened in a launch, and what it asked a scheduler
manifest/sweep=<sweep>/<id>.json                                    makes them count, and says what they replace
jobs/sweep=<sweep>/<submission>.json                                what a scheduler was given; deleted when it is over
claims/<launch>-<n>.json                                            which trials a launch is about to run; gone when it ends
columns/<table>/<type>=<column>=<claim>                             the type of each column that tasks added
checkpoints/<pack>/pack.json, <name>.ckpt                           deleted after the commit
searches/sweep=<sweep>/<study>/<batch>-<digest>.json                what a search proposed, before it runs
searches/sweep=<sweep>/reports/<attempt>.json                       what trials that may be pruned reported, and which were
fits/sweep=<sweep>/fits.parquet                                     the newest fits of a sweep
code/<hash>/index.json, files/<path>                                a task's source, once for each version of it
libraries/<kernels>.so                                              what a node built for those like it without a compiler
decisions/sweep=<sweep>/<number>-<digest>.json                      which versions of a task's code count
removals/<removal>.json, <seal>.seal, <seal>.gone                   which rows were removed; which of them for good
removed/<removal>/<path>                                            what a removed sweep had beside its results, until then
tags/<when>.json                                                    words that users gave to trials
quarantine/<when>/<path>                                            what `verify --repair` moved out of the way

A store is shared, so what stands in its files never chooses a path: a path comes from a listing, or is made here from
identities that pass `identity`, the one pattern for all of them.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import PurePosixPath
from urllib.parse import quote, unquote


def new_name() -> str:
    """Return a name that nothing else has and that sorts by time."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}_{now:%f}{secrets.token_hex(3)}"


DATA_TABLES = ("metrics", "curves", "features")
"""Written before the commit, in this order."""
FOLDERS = ("manifest", "trials", *DATA_TABLES, "attempts", "decisions", "removals")
"""What a reader lists."""
CLAIMS = "claims"
_COMPACTED = "compact_"
_ATTEMPT_ID = re.compile(r"\d{8}T\d{6}_[0-9a-f]{12}")
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,249}")
_UNSAFE = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class FileKind:
    """Files of one kind: where they stand, and how large one that a reader takes whole can be."""

    name: str
    pattern: str
    """`*` stands for one part of a path, or of a part; `**` for all that follows."""
    most_bytes: int | None
    """Larger ones are not read; None where whoever wrote the file says its size, or no memory is kept for it."""

    @cached_property
    def matches(self) -> re.Pattern[str]:
        """What a path of this kind looks like."""
        parts = re.escape(self.pattern).replace(r"\*\*", ".+").replace(r"\*", "[^/]*")
        return re.compile(parts, re.DOTALL)


_MARK, _OBJECT, _TABLE = 2**20, 2**26, 2**29
"""Bytes: a few words; JSON or text, some millions of values; rows that are decoded at once."""
FILE_KINDS = (
    FileKind("format", "format.json", _MARK),
    FileKind("spec", "sweeps/*/*.json", _OBJECT),
    FileKind("trials list", "sweeps/*/*.trials", _OBJECT),
    FileKind("renaming", "sweeps/*/renamed_from", _MARK),
    FileKind("cancellation", "sweeps/*/cancel", _MARK),
    FileKind("forgiven nodes", "sweeps/*/forgiven", _MARK),
    FileKind("compacted trials", f"trials/sweep=*/{_COMPACTED}*.parquet", _TABLE),
    FileKind("commit", "trials/sweep=*/*.parquet", _TABLE),
    *(
        kind
        for table in DATA_TABLES
        for kind in (
            FileKind(f"compacted {table}", f"{table}/sweep=*/{_COMPACTED}*.parquet", None),
            FileKind(table, f"{table}/sweep=*/*.parquet", None),
        )
    ),
    FileKind("record", "attempts/sweep=*/*.json", _OBJECT),
    FileKind("log", "attempts/sweep=*/*.log", _OBJECT),
    FileKind("compacted records", f"attempts/sweep=*/{_COMPACTED}*.parquet", _TABLE),
    FileKind("heartbeat", "beats/sweep=*/*.json", _OBJECT),
    FileKind("live curves", "live/sweep=*/*.parquet", _OBJECT),
    FileKind("launch", "launches/sweep=*/*.json", _OBJECT),
    FileKind("launch log", "launches/sweep=*/*.log", _OBJECT),
    FileKind("manifest", "manifest/sweep=*/*.json", _OBJECT),
    FileKind("submission", "jobs/sweep=*/*.json", _OBJECT),
    FileKind("claim", f"{CLAIMS}/*.json", _OBJECT),
    FileKind("column claim", "columns/*/*", _MARK),
    FileKind("checkpointed trials", "checkpoints/*/pack.json", _OBJECT),
    FileKind("checkpoint", "checkpoints/*/*.ckpt", None),
    FileKind("reports", "searches/sweep=*/reports/*.json", _OBJECT),
    FileKind("batch", "searches/sweep=*/*/*.json", _OBJECT),
    FileKind("fits", "fits/sweep=*/fits.parquet", _OBJECT),
    FileKind("code index", "code/*/index.json", _OBJECT),
    FileKind("code", "code/*/files/**", _OBJECT),
    FileKind("library", "libraries/*.so", _OBJECT),
    FileKind("decision", "decisions/sweep=*/*.json", _OBJECT),
    FileKind("removal", "removals/*.json", _OBJECT),
    FileKind("purge record", "removals/*.seal", _OBJECT),
    FileKind("final purge record", "removals/*.gone", _OBJECT),
    FileKind("put away", "removed/*/**", None),
    FileKind("tags", "tags/*.json", _OBJECT),
    FileKind("quarantined", "quarantine/*/**", None),
)
"""Every kind of file of a store; of two that fit a path the first is meant."""
_KINDS_OF: dict[str, list[FileKind]] = {}
for _kind in FILE_KINDS:
    _KINDS_OF.setdefault(_kind.pattern.partition("/")[0], []).append(_kind)


def kind_of(path: str) -> FileKind | None:
    """Return of which kind a file at this path is; None where no file of a store stands."""
    kinds = _KINDS_OF.get(path.partition("/")[0], ())
    return next((kind for kind in kinds if kind.matches.fullmatch(path)), None)


def is_place_of_a_file(path: str) -> bool:
    """Whether a file of a store stands here, and never a folder."""
    kind = kind_of(path)
    return kind is not None and not kind.pattern.endswith("**")


class ForeignNameError(ValueError):
    """A name from a store that cannot be part of a path of it."""


def identity(name: object) -> str:
    """Return a sweep's, an attempt's, a pack's, a compaction's or any other name that becomes part of a path.

    Raises:
        ForeignNameError: it could lead elsewhere.
    """
    if not isinstance(name, str) or _IDENTITY.fullmatch(name) is None:
        raise ForeignNameError(f"{name!r:.200} is no name of ours (letters, digits and _.+-, the first no sign)")
    return name


def is_identity(name: object) -> bool:
    """Whether `identity` accepts this name."""
    return isinstance(name, str) and _IDENTITY.fullmatch(name) is not None


def is_safe(path: str) -> bool:
    """Whether a path stays below where it begins, whoever resolves it."""
    return _UNSAFE.search(path) is None


def is_table_path(path: str, table: str, sweep: str) -> bool:
    """Whether `table_path` can have made this path, for a table of a sweep."""
    folder, _, name = path.rpartition("/")
    return folder == f"{table}/sweep={sweep}" and name.endswith(".parquet") and is_identity(name[:-8])


def is_job_folder(folder: object, sweep: str, submission: str) -> bool:
    """Whether this is a folder as a launch makes it for its jobs: `<anywhere>/<sweep>/<submission>`, written out."""
    if not isinstance(folder, str) or not is_safe(folder.removeprefix("/")):
        return False
    named = submission.removeprefix(f"depthrate-{sweep}-")
    return named != submission and is_attempt_id(named) and folder.endswith(f"/{sweep}/{submission}")


def sweep_folder(sweep: str) -> str:
    """Return the folder of a sweep's specs."""
    return f"sweeps/{identity(sweep)}"


def spec_path(sweep: str, spec_hash: str) -> str:
    """Return where a launched spec is kept."""
    return f"{sweep_folder(sweep)}/{identity(spec_hash)}.json"


def table_path(table: str, sweep: str, attempt_id: str, part: int | None) -> str:
    """Return where an attempt writes its rows of a table."""
    suffix = "" if part is None else f"-{part:04d}"
    return f"{table}/sweep={identity(sweep)}/{identity(attempt_id)}{suffix}.parquet"


def data_path(commit: str, table: str) -> str:
    """Return where the rows of a table stand that were committed with this trials file."""
    return f"{table}/{commit.partition('/')[2]}"


def attempts_folder(sweep: str) -> str:
    """Return the folder of a sweep's attempts."""
    return f"attempts/sweep={identity(sweep)}"


def attempt_path(sweep: str, attempt_id: str) -> str:
    """Return where an attempt keeps its state."""
    return f"{attempts_folder(sweep)}/{identity(attempt_id)}.json"


def log_path(sweep: str, attempt_id: str) -> str:
    """Return where the end of an attempt's output is kept."""
    return f"attempts/sweep={identity(sweep)}/{identity(attempt_id)}.log"


def heartbeats_folder(sweep: str | None = None) -> str:
    """Return the folder of the nodes' signs of life, for one sweep or all."""
    return "beats" if sweep is None else f"beats/sweep={identity(sweep)}"


def beat_path(sweep: str, node: str) -> str:
    """Return where a node says which attempts run on it and how far they are."""
    return f"{heartbeats_folder(sweep)}/{identity(node)}.json"


def launches_folder(sweep: str) -> str:
    """Return the folder of what happened in a sweep's launches."""
    return f"launches/sweep={identity(sweep)}"


def launch_path(sweep: str, launch_id: str) -> str:
    """Return where a launch keeps what happened, for programs."""
    return f"{launches_folder(sweep)}/{identity(launch_id)}.json"


def launch_log_path(sweep: str, launch_id: str) -> str:
    """Return where a launch keeps what happened, line by line."""
    return f"{launches_folder(sweep)}/{identity(launch_id)}.log"


def live_folder(sweep: str | None = None) -> str:
    """Return the folder of what running packs have logged, of one sweep or all."""
    return "live" if sweep is None else f"live/sweep={identity(sweep)}"


def live_path(sweep: str, pack_id: str) -> str:
    """Return where a running pack keeps what it has logged."""
    return f"{live_folder(sweep)}/{identity(pack_id)}.parquet"


def checkpoint_folder(pack_id: str) -> str:
    """Return the folder of a pack's checkpoints."""
    return f"checkpoints/{identity(pack_id)}"


def checkpoint_path(pack_id: str, name: str) -> str:
    """Return where a pack keeps the checkpoint called `name`."""
    return f"{checkpoint_folder(pack_id)}/{identity(name)}.ckpt"


def checkpoint_trials_path(pack_id: str) -> str:
    """Return where it is written which trials a checkpointed pack holds."""
    return f"{checkpoint_folder(pack_id)}/pack.json"


def fits_path(sweep: str) -> str:
    """Return where a sweep's newest fits are kept."""
    return f"fits/sweep={identity(sweep)}/fits.parquet"


def searches_folder(sweep: str) -> str:
    """Return the folder of what a sweep's searches proposed."""
    return f"searches/sweep={identity(sweep)}"


def batch_path(sweep: str, study_id: str, batch: int, digest: str) -> str:
    """Return where a study keeps what it proposed at once."""
    return f"{searches_folder(sweep)}/{identity(study_id)}/{batch:06d}-{identity(digest)}.json"


def reports_path(sweep: str, attempt_id: str) -> str:
    """Return where an attempt keeps what trials that may be pruned have reported."""
    return f"{searches_folder(sweep)}/reports/{identity(attempt_id)}.json"


def cancel_path(sweep: str) -> str:
    """Return where it is written that a sweep's launches are to stop."""
    return f"{sweep_folder(sweep)}/cancel"


def renaming_path(sweep: str) -> str:
    """Return where it is written that a sweep had another name."""
    return f"{sweep_folder(sweep)}/renamed_from"


def forgiven_path(sweep: str) -> str:
    """Return where it is written which nodes have been repaired, and when that was said."""
    return f"{sweep_folder(sweep)}/forgiven"


def submissions_folder(sweep: str) -> str:
    """Return the folder of what was given to a scheduler for a sweep."""
    return f"jobs/sweep={identity(sweep)}"


def submission_path(sweep: str, name: str) -> str:
    """Return where a launch writes which jobs it has given to a scheduler."""
    return f"{submissions_folder(sweep)}/{identity(name)}.json"


def claim_path(launch_id: str, number: int) -> str:
    """Return where a launch writes, for the nth time, which trials it is about to run."""
    return f"{CLAIMS}/{launch_id}-{number:08d}.json"


def launch_of_claim(path: str) -> str:
    """Return the launch in a path that `claim_path` made."""
    return name_of_path(path).partition("-")[0]


def trial_ids_path(sweep: str, spec_hash: str) -> str:
    """Return where the identities of a launched spec's trials are kept."""
    return f"{sweep_folder(sweep)}/{identity(spec_hash)}.trials"


def compacted_path(table: str, sweep: str, compaction_id: str, part: int | None = None) -> str:
    """Return where a compaction writes rows of a table."""
    return table_path(table, sweep, _COMPACTED + compaction_id, part)


def is_compacted(path: str) -> bool:
    """Whether `compacted_path` made this path: it counts through its manifest alone."""
    return path.rpartition("/")[2].startswith(_COMPACTED)


def compaction_of_path(path: str) -> str:
    """Return the compaction's identity in a path that `compacted_path` made."""
    return name_of_path(path).removeprefix(_COMPACTED).partition("-")[0]


def manifest_path(sweep: str, compaction_id: str) -> str:
    """Return where a compaction says what it wrote and what that replaces."""
    return f"manifest/sweep={identity(sweep)}/{identity(compaction_id)}.json"


def column_path(table: str, column: str, type_name: str, claim: str) -> str:
    """Return the empty file that claims a type for a column of the tasks' own; `claim` tells it from other claims."""
    return f"columns/{table}/{quote(type_name, safe='')}={quote(column, safe='')}={identity(claim)}"


def column_of_path(path: str) -> tuple[str, str]:
    """Return (column, type name) of a path that `column_path` made, or a version that did not tell claims apart."""
    type_name, _, rest = path.rpartition("/")[2].partition("=")
    return unquote(rest.partition("=")[0]), unquote(type_name)


def code_folder(code_hash: str) -> str:
    """Return the folder of a version of a task's source."""
    return f"code/{identity(code_hash)}"


def code_index_path(code_hash: str) -> str:
    """Return where it is written which files a version of a task's source has."""
    return f"{code_folder(code_hash)}/index.json"


def code_file_path(code_hash: str, path: str) -> str:
    """Return where a file of a task's source is kept; `path` is relative to the task's folder."""
    return f"{code_folder(code_hash)}/files/{quote(path)}"


def library_path(file_name: str) -> str:
    """Return where kernels are kept that a node built."""
    return f"libraries/{identity(file_name)}"


def decision_path(sweep: str, number: int, digest: str) -> str:
    """Return where it is written which versions of a task's code count, as decided at one time."""
    return f"decisions/sweep={identity(sweep)}/{number:06d}-{identity(digest)}.json"


def number_of_decision(path: str) -> int:
    """Return a decision's place in the order of all; 0 for a path that `decision_path` did not make."""
    number = name_of_path(path).partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 12 else 0


def removal_path(removal_id: str) -> str:
    """Return where it is written which rows were removed at one time."""
    return f"removals/{identity(removal_id)}.json"


def purge_record_path(seal_id: str, *, is_final: bool) -> str:
    """Return where it is written which removed rows count for nobody, whoever asks for their trials."""
    return f"removals/{identity(seal_id)}.{'gone' if is_final else 'seal'}"


def is_final_seal(path: str) -> bool:
    """Whether `seal_path` made this path for rows that a compaction may leave out."""
    return path.endswith(".gone")


def is_seal(path: str) -> bool:
    """Whether `seal_path` made this path."""
    return path.endswith((".gone", ".seal"))


def removed_path(removal_id: str, path: str = "") -> str:
    """Return where a file of a removed sweep waits, or the folder of all of them."""
    return f"removed/{identity(removal_id)}" + (f"/{path}" if path else "")


def tag_path(tagging_id: str) -> str:
    """Return where it is written which trials got a tag, or lost it, at one time."""
    return f"tags/{identity(tagging_id)}.json"


def quarantine_folder(stamp: str) -> str:
    """Return the folder into which one repair moves what is not as it should be."""
    return f"quarantine/{stamp}"


def sweep_of_path(path: str) -> str:
    """Return the sweep of a path below a folder `sweep=<sweep>`."""
    return path.split("/")[1].removeprefix("sweep=")


def name_of_path(path: str) -> str:
    """Return a file's name without its ending: `<attempt>[-<part>]` of a table's file."""
    return PurePosixPath(path).stem


def attempt_of_path(path: str) -> str:
    """Return the attempt_id in a path that `table_path`, `attempt_path` or `log_path` made."""
    return name_of_path(path).partition("-")[0]


def is_attempt_id(text: str) -> bool:
    """Whether this is a name that attempts give themselves."""
    return _ATTEMPT_ID.fullmatch(text) is not None
