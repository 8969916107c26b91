"""Every path of a store, each declared once: its pattern, its size limit and its content.

A store is shared, so the content of its files never determines a path. A path comes from a listing, or is built here from names
that pass `identity`, the single pattern for all names.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from depthrate.errors import InputError


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


class ForeignNameError(InputError):
    """A name from a store that cannot be part of a path."""


def identity(name: object) -> str:
    """Check a name that becomes part of a path (of a sweep, attempt, pack, compaction or anything else) and return it.

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


_MARK = 2**20
"""Maximum bytes of a file with a few words."""
_OBJECT = 2**26
"""Maximum bytes of JSON or text with a few million values."""
_TABLE = 2**29
"""Maximum bytes of a table that is decoded as a whole."""
FILE_KINDS: list[FileKind] = []
"""Every kind of file of a store. The first kind that matches a path applies."""
_KINDS_OF: dict[str, list[FileKind]] = {}


@dataclass(frozen=True)
class FileKind:
    """Files of one kind. Calling it with names returns the path of one file."""

    name: str
    pattern: str
    """Pattern of their paths. `<...>` stands for one name, `<path>` for the rest of the path."""
    max_bytes: int | None
    """Maximum size of a file that is read, or None if its writer records its size or it is not read into memory."""
    content: str

    def __post_init__(self) -> None:
        """Add the kind to the table of all kinds."""
        FILE_KINDS.append(self)
        _KINDS_OF.setdefault(self.pattern.partition("/")[0], []).append(self)

    @cached_property
    def matches(self) -> re.Pattern[str]:
        """Regular expression of their paths."""
        parts = re.escape(self.pattern).replace("<path>", ".+")
        return re.compile(re.sub("<[^>]+>", "[^/]*", parts), re.DOTALL)

    def __call__(self, *names: str) -> str:
        """Return the path with these names in place of the pattern's placeholders. `identity` checks each name."""
        return _fill(self.pattern, names)

    def folder(self, *names: str) -> str:
        """Return the folder of the files whose first names are these, or of all files of the kind."""
        return _fill("<".join(self.pattern.split("<")[: len(names) + 1]).rpartition("/")[0], names)


def _fill(pattern: str, names: Sequence[str]) -> str:
    first, *literals = re.split("<[^>]+>", pattern)
    return first + "".join(identity(name) + literal for name, literal in zip(names, literals, strict=True))


FileKind("format", "format.json", _MARK, "versions that may read the store, and that may write")
spec_path = FileKind("spec", "sweeps/<sweep>/<spec hash>.json", _OBJECT, "a launched spec in full")
trial_ids_path = FileKind("trials list", "sweeps/<sweep>/<spec hash>.trials", _OBJECT, "its trial IDs")
cancel_path = FileKind("cancellation", "sweeps/<sweep>/cancel", _MARK, "time of the last `depthrate cancel`")
cleared_nodes_path = FileKind(
    "forgiven nodes", "sweeps/<sweep>/forgiven", _MARK, "nodes cleared by `depthrate nodes --clear`, and when"
)
for _table, _max_bytes in (("trials", _TABLE), *((table, None) for table in DATA_TABLES)):
    FileKind(
        f"compacted {_table}",
        f"{_table}/sweep=<sweep>/{_COMPACTED}<id[-part]>.parquet",
        _max_bytes,
        "many of those below in one file",
    )
    _name, _content = ("commit", "trials of an attempt") if _table == "trials" else (_table, f"{_table} of an attempt")
    FileKind(_name, f"{_table}/sweep=<sweep>/<attempt[-part]>.parquet", _max_bytes, _content)
    FileKind(
        f"Delta log of {_table}",
        f"{_table}/_delta_log/<version>.json",
        _OBJECT,
        "files of the table, for other programs",
    )
attempt_path = FileKind(
    "record", "attempts/sweep=<sweep>/<attempt>.json", _OBJECT, "state, heartbeat, host, job and error of an attempt"
)
log_path = FileKind("log", "attempts/sweep=<sweep>/<attempt>.log", _OBJECT, "the end of its output")
FileKind(
    "compacted records", f"attempts/sweep=<sweep>/{_COMPACTED}<id>.parquet", _TABLE, "many of the two above in one file"
)
heartbeat_path = FileKind(
    "heartbeat", "beats/sweep=<sweep>/<node>.json", _OBJECT, "heartbeats of the attempts that run on a node"
)
live_path = FileKind(
    "live curves",
    "live/sweep=<sweep>/<pack>.parquet",
    _OBJECT,
    "rows logged by a running pack, deleted after the commit",
)
launch_path = FileKind(
    "launch", "launches/sweep=<sweep>/<launch>.json", _OBJECT, "events of a launch, and its scheduler requests"
)
launch_log_path = FileKind("launch log", "launches/sweep=<sweep>/<launch>.log", _OBJECT, "the same, one per line")
manifest_path = FileKind(
    "manifest",
    "manifest/sweep=<sweep>/<id>.json",
    _OBJECT,
    "makes compacted files visible, lists what they replace",
)
submission_path = FileKind(
    "submission",
    "jobs/sweep=<sweep>/<submission>.json",
    _OBJECT,
    "jobs submitted to a scheduler, deleted when they end",
)
_CLAIM = FileKind(
    "claim", "claims/<launch-number>.json", _OBJECT, "trials that a launch is about to run, deleted at its end"
)
_COLUMN = FileKind("column claim", "columns/<table>/<type=column=claim>", _MARK, "type of a column that tasks added")
checkpoint_trials_path = FileKind("checkpointed trials", "checkpoints/<pack>/pack.json", _OBJECT, "trials of the next")
checkpoint_path = FileKind(
    "checkpoint", "checkpoints/<pack>/<name>.ckpt", None, "checkpoints, deleted after the commit"
)
reports_path = FileKind(
    "reports",
    "searches/sweep=<sweep>/reports/<attempt>.json",
    _OBJECT,
    "reports of prunable trials, and pruned trials",
)
_BATCH = FileKind(
    "batch",
    "searches/sweep=<sweep>/<study>/<batch-digest>.json",
    _OBJECT,
    "proposals of a search, written before they run",
)
fits_path = FileKind("fits", "fits/sweep=<sweep>/fits.parquet", _OBJECT, "newest fits of a sweep")
code_index_path = FileKind("code index", "code/<hash>/index.json", _OBJECT, "list of the files below, once per version")
_CODE = FileKind("code", "code/<hash>/files/<path>", _OBJECT, "a task's source code")
library_path = FileKind("library", "libraries/<kernels>.so", _OBJECT, "kernels, for like nodes without a compiler")
_DECISION = FileKind(
    "decision", "decisions/sweep=<sweep>/<number-digest>.json", _OBJECT, "accepted versions of a task's code"
)
removal_path = FileKind(
    "removal", "removals/<removal>.json", _OBJECT, "removed rows, hidden until they are restored or purged"
)
_REMOVED = FileKind("put away", "removed/<removal>/<path>", None, "other files of a removed sweep, until its purge")
tag_path = FileKind("tags", "tags/<when>.json", _OBJECT, "tags that users gave to trials")
quarantine_path = FileKind("quarantined", "quarantine/<when>/<path>", None, "files moved aside by `verify --repair`")


def kind_of(path: str) -> FileKind | None:
    """Return the kind of the file at this path, or None if no file of a store has this path."""
    kinds = _KINDS_OF.get(path.partition("/")[0], ())
    return next((kind for kind in kinds if kind.matches.fullmatch(path)), None)


def is_folder_of_store(name: str) -> bool:
    """Return whether a store may have a folder of this name at its top."""
    return name in _KINDS_OF


def is_file_path(path: str) -> bool:
    """Return whether this is the path of a store's file (not of a folder)."""
    kind = kind_of(path)
    return kind is not None and not kind.pattern.endswith("<path>")


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


def table_path(table: str, sweep: str, attempt_id: str, part: int | None) -> str:
    """Return the path of an attempt's rows of a table."""
    suffix = "" if part is None else f"-{part:04d}"
    return f"{table}/sweep={identity(sweep)}/{identity(attempt_id)}{suffix}.parquet"


def data_path(commit: str, table: str) -> str:
    """Return the path of the rows of a table that were committed with this trials file."""
    return f"{table}/{commit.partition('/')[2]}"


def compacted_path(table: str, sweep: str, compaction_id: str, part: int | None = None) -> str:
    """Return the path of a compaction's rows of a table."""
    return table_path(table, sweep, _COMPACTED + compaction_id, part)


def delta_log_folder(table: str) -> str:
    """Return the folder of a table's Delta log."""
    return f"{table}/_delta_log"


def delta_log_path(table: str, version: int) -> str:
    """Return the path of one version of a table's Delta log."""
    return f"{delta_log_folder(table)}/{version:020d}.json"


def is_compacted(path: str) -> bool:
    """Return whether `compacted_path` created this path. Its file is visible only through its manifest."""
    return path.rpartition("/")[2].startswith(_COMPACTED)


def compaction_of_path(path: str) -> str:
    """Return the compaction ID in a path created by `compacted_path`."""
    return name_of_path(path).removeprefix(_COMPACTED).partition("-")[0]


def claim_path(launch_id: str, number: int) -> str:
    """Return the path of a launch's nth claim."""
    return _CLAIM(f"{launch_id}-{number:08d}")


def launch_of_claim(path: str) -> str:
    """Return the launch in a path created by `claim_path`."""
    return name_of_path(path).partition("-")[0]


def batch_path(sweep: str, study_id: str, batch: int, digest: str) -> str:
    """Return the path of one batch of a study's proposals."""
    return _BATCH(sweep, study_id, f"{batch:06d}-{digest}")


def column_path(table: str, column: str, type_name: str, claim: str) -> str:
    """Return the path of an empty file that claims a type for a custom column. `claim` makes it unique."""
    return f"columns/{table}/{quote(type_name, safe='')}={quote(column, safe='')}={identity(claim)}"


def column_of_path(path: str) -> tuple[str, str]:
    """Return (column, type name) of a path created by `column_path`."""
    type_name, _, rest = path.rpartition("/")[2].partition("=")
    return unquote(rest.partition("=")[0]), unquote(type_name)


def code_file_path(code_hash: str, path: str) -> str:
    """Return the path of a file of a task's source. `path` is relative to the task's folder."""
    return f"{_CODE.folder(code_hash)}/{quote(path)}"


def decision_path(sweep: str, number: int, digest: str) -> str:
    """Return the path of one decision on the accepted versions of a task's code."""
    return _DECISION(sweep, f"{number:06d}-{digest}")


def number_of_decision(path: str) -> int:
    """Return a decision's position in the order of all, or 0 for a path not created by `decision_path`."""
    number = name_of_path(path).partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 12 else 0


def removed_path(removal_id: str, path: str = "") -> str:
    """Return the path of an archived file of a removed sweep, or the folder of all its archived files."""
    return _REMOVED.folder(removal_id) + (f"/{path}" if path else "")


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
    """Return whether this name has the pattern of generated attempt IDs."""
    return _ATTEMPT_ID.fullmatch(text) is not None


def searches_folder(sweep: str) -> str:
    """Return the folder of the proposals and reports of a sweep's searches."""
    return _BATCH.folder(sweep)
