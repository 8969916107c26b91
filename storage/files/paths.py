"""Every path of a store, one function each.

format.json                                                         versions that may read the store, and that may write
sweeps/<sweep>/<spec hash>.json, <spec hash>.trials                 each launched spec in full, and its trial IDs
sweeps/<sweep>/renamed_from                                         the previous name, and whether the renaming is complete
sweeps/<sweep>/cancel                                               time of the last `depthrate cancel`
sweeps/<sweep>/forgiven                                             nodes cleared by `depthrate nodes --clear`
trials|metrics|curves|features/sweep=<sweep>/<attempt>[-<part>].parquet   rows of an attempt
attempts/sweep=<sweep>/<attempt>.json, <attempt>.log                state, heartbeat, host, job, error, and the output
trials|metrics|curves|features|attempts/sweep=<sweep>/compact_<id>[-<part>].parquet   many of the two above in one file
beats/sweep=<sweep>/<node>.json                                     heartbeats of the attempts that run on a node
live/sweep=<sweep>/<pack>.parquet                                   rows logged by a running pack, deleted after the commit
launches/sweep=<sweep>/<launch>.json, <launch>.log                  events of a launch, and its scheduler requests
manifest/sweep=<sweep>/<id>.json                                    makes compacted files visible, lists what they replace
jobs/sweep=<sweep>/<submission>.json                                jobs submitted to a scheduler, deleted when they end
claims/<launch>-<n>.json                                            trials that a launch is about to run, deleted at its end
columns/<table>/<type>=<column>=<claim>                             type of each column that tasks added
checkpoints/<pack>/pack.json, <name>.ckpt                           checkpoints, deleted after the commit
searches/sweep=<sweep>/<study>/<batch>-<digest>.json                proposals of a search, written before they run
searches/sweep=<sweep>/reports/<attempt>.json                       reports of prunable trials, and pruned trials
fits/sweep=<sweep>/fits.parquet                                     newest fits of a sweep
code/<hash>/index.json, files/<path>                                a task's source code, once per version
libraries/<kernels>.so                                              kernel libraries, for like nodes without a compiler
decisions/sweep=<sweep>/<number>-<digest>.json                      accepted versions of a task's code
removals/<removal>.json, <seal>.seal, <seal>.gone                   soft-deleted rows, and purged ones
removed/<removal>/<path>                                            other files of a removed sweep, until its purge
tags/<when>.json                                                    tags that users gave to trials
quarantine/<when>/<path>                                            files moved aside by `verify --repair`

A store is shared, so the content of its files never determines a path: a path comes from a listing, or is built here from
names that pass `identity`, the one pattern for all of them.
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
    """Return a unique name that sorts by time."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}_{now:%f}{secrets.token_hex(3)}"


DATA_TABLES = ("metrics", "curves", "features")
"""Tables written before the commit, in this order."""
FOLDERS = ("manifest", "trials", *DATA_TABLES, "attempts", "decisions", "removals")
"""Folders that readers list."""
CLAIMS = "claims"
_COMPACTED = "compact_"
_ATTEMPT_ID = re.compile(r"\d{8}T\d{6}_[0-9a-f]{12}")
_IDENTITY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,249}")
_UNSAFE = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class FileKind:
    """Files of one kind: their paths, and the maximum size of a file that is read at once."""

    name: str
    pattern: str
    """Pattern of their paths. `*` stands for one part of a path, or a part of one, and `**` for all that follows."""
    max_bytes: int | None
    """Maximum size of a file that is read, or None if its writer records its size or it is not read into memory."""

    @cached_property
    def matches(self) -> re.Pattern[str]:
        """Regular expression of their paths."""
        parts = re.escape(self.pattern).replace(r"\*\*", ".+").replace(r"\*", "[^/]*")
        return re.compile(parts, re.DOTALL)


_MARK = 2**20
"""Maximum bytes of a file with a few words."""
_OBJECT = 2**26
"""Maximum bytes of JSON or text with some millions of values."""
_TABLE = 2**29
"""Maximum bytes of a table that is decoded at once."""
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
"""Every kind of file of a store. The first kind that matches a path applies."""
_KINDS_OF: dict[str, list[FileKind]] = {}
for _kind in FILE_KINDS:
    _KINDS_OF.setdefault(_kind.pattern.partition("/")[0], []).append(_kind)


def kind_of(path: str) -> FileKind | None:
    """Return the kind of the file at this path, or None if no file of a store has this path."""
    kinds = _KINDS_OF.get(path.partition("/")[0], ())
    return next((kind for kind in kinds if kind.matches.fullmatch(path)), None)


def is_file_path(path: str) -> bool:
    """Return whether this is the path of a store's file, never of a folder."""
    kind = kind_of(path)
    return kind is not None and not kind.pattern.endswith("**")


class ForeignNameError(ValueError):
    """A name from a store that cannot be part of a path."""


def identity(name: object) -> str:
    """Return a name that becomes part of a path (of a sweep, attempt, pack, compaction or anything else) after a check.

    Raises:
        ForeignNameError: The name could lead elsewhere.
    """
    if not isinstance(name, str) or _IDENTITY.fullmatch(name) is None:
        raise ForeignNameError(
            f"name {name!r:.200} is invalid, expected letters, digits and _.+-, first a letter or digit"
        )
    return name


def is_identity(name: object) -> bool:
    """Return whether `identity` accepts this name."""
    return isinstance(name, str) and _IDENTITY.fullmatch(name) is not None


def is_safe(path: str) -> bool:
    """Return whether a path stays below its root, however it is resolved."""
    return _UNSAFE.search(path) is None


def is_table_path(path: str, table: str, sweep: str) -> bool:
    """Return whether `table_path` can have created this path, for a table of a sweep."""
    folder, _, name = path.rpartition("/")
    return folder == f"{table}/sweep={sweep}" and name.endswith(".parquet") and is_identity(name[:-8])


def is_job_folder(folder: object, sweep: str, submission: str) -> bool:
    """Return whether a launch can have created this job folder: `<anywhere>/<sweep>/<submission>`, absolute."""
    if not isinstance(folder, str) or not is_safe(folder.removeprefix("/")):
        return False
    named = submission.removeprefix(f"depthrate-{sweep}-")
    return named != submission and is_attempt_id(named) and folder.endswith(f"/{sweep}/{submission}")


def sweep_folder(sweep: str) -> str:
    """Return the folder of a sweep's specs."""
    return f"sweeps/{identity(sweep)}"


def spec_path(sweep: str, spec_hash: str) -> str:
    """Return the path of a launched spec."""
    return f"{sweep_folder(sweep)}/{identity(spec_hash)}.json"


def table_path(table: str, sweep: str, attempt_id: str, part: int | None) -> str:
    """Return the path of an attempt's rows of a table."""
    suffix = "" if part is None else f"-{part:04d}"
    return f"{table}/sweep={identity(sweep)}/{identity(attempt_id)}{suffix}.parquet"


def data_path(commit: str, table: str) -> str:
    """Return the path of the rows of a table that were committed with this trials file."""
    return f"{table}/{commit.partition('/')[2]}"


def attempts_folder(sweep: str) -> str:
    """Return the folder of a sweep's attempts."""
    return f"attempts/sweep={identity(sweep)}"


def attempt_path(sweep: str, attempt_id: str) -> str:
    """Return the path of an attempt's record."""
    return f"{attempts_folder(sweep)}/{identity(attempt_id)}.json"


def log_path(sweep: str, attempt_id: str) -> str:
    """Return the path of the end of an attempt's output."""
    return f"attempts/sweep={identity(sweep)}/{identity(attempt_id)}.log"


def heartbeats_folder(sweep: str | None = None) -> str:
    """Return the folder of the nodes' heartbeats, for one sweep or all."""
    return "beats" if sweep is None else f"beats/sweep={identity(sweep)}"


def heartbeat_path(sweep: str, node: str) -> str:
    """Return the path of a node's heartbeats: the attempts that run on it, and their progress."""
    return f"{heartbeats_folder(sweep)}/{identity(node)}.json"


def launches_folder(sweep: str) -> str:
    """Return the folder of the events of a sweep's launches."""
    return f"launches/sweep={identity(sweep)}"


def launch_path(sweep: str, launch_id: str) -> str:
    """Return the path of a launch's events, for programs."""
    return f"{launches_folder(sweep)}/{identity(launch_id)}.json"


def launch_log_path(sweep: str, launch_id: str) -> str:
    """Return the path of a launch's events, one per line."""
    return f"{launches_folder(sweep)}/{identity(launch_id)}.log"


def live_folder(sweep: str | None = None) -> str:
    """Return the folder of the rows that running packs have logged, for one sweep or all."""
    return "live" if sweep is None else f"live/sweep={identity(sweep)}"


def live_path(sweep: str, pack_id: str) -> str:
    """Return the path of the rows that a running pack has logged."""
    return f"{live_folder(sweep)}/{identity(pack_id)}.parquet"


def checkpoint_folder(pack_id: str) -> str:
    """Return the folder of a pack's checkpoints."""
    return f"checkpoints/{identity(pack_id)}"


def checkpoint_path(pack_id: str, name: str) -> str:
    """Return the path of a pack's checkpoint called `name`."""
    return f"{checkpoint_folder(pack_id)}/{identity(name)}.ckpt"


def checkpoint_trials_path(pack_id: str) -> str:
    """Return the path of the list of trials in a pack's checkpoints."""
    return f"{checkpoint_folder(pack_id)}/pack.json"


def fits_path(sweep: str) -> str:
    """Return the path of a sweep's newest fits."""
    return f"fits/sweep={identity(sweep)}/fits.parquet"


def searches_folder(sweep: str) -> str:
    """Return the folder of the proposals of a sweep's searches."""
    return f"searches/sweep={identity(sweep)}"


def batch_path(sweep: str, study_id: str, batch: int, digest: str) -> str:
    """Return the path of one batch of a study's proposals."""
    return f"{searches_folder(sweep)}/{identity(study_id)}/{batch:06d}-{identity(digest)}.json"


def reports_path(sweep: str, attempt_id: str) -> str:
    """Return the path of the reports of an attempt's prunable trials."""
    return f"{searches_folder(sweep)}/reports/{identity(attempt_id)}.json"


def cancel_path(sweep: str) -> str:
    """Return the path of the request to cancel a sweep's launches."""
    return f"{sweep_folder(sweep)}/cancel"


def renaming_path(sweep: str) -> str:
    """Return the path of a sweep's previous name."""
    return f"{sweep_folder(sweep)}/renamed_from"


def cleared_nodes_path(sweep: str) -> str:
    """Return the path of the cleared nodes, with the times at which they were cleared."""
    return f"{sweep_folder(sweep)}/forgiven"


def submissions_folder(sweep: str) -> str:
    """Return the folder of a sweep's submissions to a scheduler."""
    return f"jobs/sweep={identity(sweep)}"


def submission_path(sweep: str, name: str) -> str:
    """Return the path of the jobs of one submission."""
    return f"{submissions_folder(sweep)}/{identity(name)}.json"


def claim_path(launch_id: str, number: int) -> str:
    """Return the path of a launch's nth claim."""
    return f"{CLAIMS}/{launch_id}-{number:08d}.json"


def launch_of_claim(path: str) -> str:
    """Return the launch in a path created by `claim_path`."""
    return name_of_path(path).partition("-")[0]


def trial_ids_path(sweep: str, spec_hash: str) -> str:
    """Return the path of the trial IDs of a launched spec."""
    return f"{sweep_folder(sweep)}/{identity(spec_hash)}.trials"


def compacted_path(table: str, sweep: str, compaction_id: str, part: int | None = None) -> str:
    """Return the path of a compaction's rows of a table."""
    return table_path(table, sweep, _COMPACTED + compaction_id, part)


def is_compacted(path: str) -> bool:
    """Return whether `compacted_path` created this path. Its file is visible only through its manifest."""
    return path.rpartition("/")[2].startswith(_COMPACTED)


def compaction_of_path(path: str) -> str:
    """Return the compaction ID in a path created by `compacted_path`."""
    return name_of_path(path).removeprefix(_COMPACTED).partition("-")[0]


def manifest_path(sweep: str, compaction_id: str) -> str:
    """Return the path of a compaction's manifest, which lists what it wrote and what that replaces."""
    return f"manifest/sweep={identity(sweep)}/{identity(compaction_id)}.json"


def column_path(table: str, column: str, type_name: str, claim: str) -> str:
    """Return the path of an empty file that claims a type for a custom column. `claim` makes it unique."""
    return f"columns/{table}/{quote(type_name, safe='')}={quote(column, safe='')}={identity(claim)}"


def column_of_path(path: str) -> tuple[str, str]:
    """Return (column, type name) of a path created by `column_path`, or by a version without unique claims."""
    type_name, _, rest = path.rpartition("/")[2].partition("=")
    return unquote(rest.partition("=")[0]), unquote(type_name)


def code_folder(code_hash: str) -> str:
    """Return the folder of a version of a task's source."""
    return f"code/{identity(code_hash)}"


def code_index_path(code_hash: str) -> str:
    """Return the path of the list of files of a version of a task's source."""
    return f"{code_folder(code_hash)}/index.json"


def code_file_path(code_hash: str, path: str) -> str:
    """Return the path of a file of a task's source. `path` is relative to the task's folder."""
    return f"{code_folder(code_hash)}/files/{quote(path)}"


def library_path(file_name: str) -> str:
    """Return the path of a kernel library built by a node."""
    return f"libraries/{identity(file_name)}"


def decision_path(sweep: str, number: int, digest: str) -> str:
    """Return the path of one decision on the accepted versions of a task's code."""
    return f"decisions/sweep={identity(sweep)}/{number:06d}-{identity(digest)}.json"


def number_of_decision(path: str) -> int:
    """Return a decision's position in the order of all, or 0 for a path not created by `decision_path`."""
    number = name_of_path(path).partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 12 else 0


def removal_path(removal_id: str) -> str:
    """Return the path of one removal of rows."""
    return f"removals/{identity(removal_id)}.json"


def purge_record_path(seal_id: str, *, is_final: bool) -> str:
    """Return the path of a list of removed rows that are visible to no sweep, even one that requests their trials."""
    return f"removals/{identity(seal_id)}.{'gone' if is_final else 'seal'}"


def is_final_purge_record(path: str) -> bool:
    """Return whether `purge_record_path` created this path for rows that a compaction may leave out."""
    return path.endswith(".gone")


def is_purge_record(path: str) -> bool:
    """Return whether `purge_record_path` created this path."""
    return path.endswith((".gone", ".seal"))


def removed_path(removal_id: str, path: str = "") -> str:
    """Return the path of an archived file of a removed sweep, or the folder of all of them."""
    return f"removed/{identity(removal_id)}" + (f"/{path}" if path else "")


def tag_path(tagging_id: str) -> str:
    """Return the path of one change of a tag."""
    return f"tags/{identity(tagging_id)}.json"


def quarantine_folder(stamp: str) -> str:
    """Return the folder to which one repair moves corrupt files."""
    return f"quarantine/{stamp}"


def sweep_of_path(path: str) -> str:
    """Return the sweep of a path below a folder `sweep=<sweep>`."""
    return path.split("/")[1].removeprefix("sweep=")


def name_of_path(path: str) -> str:
    """Return a file's name without its extension: `<attempt>[-<part>]` for a table's file."""
    return PurePosixPath(path).stem


def attempt_of_path(path: str) -> str:
    """Return the attempt ID in a path created by `table_path`, `attempt_path` or `log_path`."""
    return name_of_path(path).partition("-")[0]


def is_attempt_id(text: str) -> bool:
    """Return whether this is a name that attempts generate."""
    return _ATTEMPT_ID.fullmatch(text) is not None
