"""Every path of a store, one function each.

sweeps/<sweep>/<spec hash>.json                                    each spec launched, whole
trials|metrics|curves|features/sweep=<sweep>/<attempt>[-<part>].parquet
attempts/sweep=<sweep>/<attempt>.json, <attempt>.log                state, heartbeat, host, job, error; what it printed
checkpoints/<pack>/pack.json, <name>.ckpt                           deleted after the commit
fits/sweep=<sweep>/fits.parquet                                     the newest fits of a sweep
"""

from __future__ import annotations

from pathlib import PurePosixPath

DATA_TABLES = ("metrics", "curves", "features")
"""Written before the commit, in this order."""


def spec_path(sweep: str, spec_hash: str) -> str:
    """Return where a launched spec is kept."""
    return f"sweeps/{sweep}/{spec_hash}.json"


def table_path(table: str, sweep: str, attempt_id: str, part: int | None) -> str:
    """Return where an attempt writes its rows of a table."""
    suffix = "" if part is None else f"-{part:04d}"
    return f"{table}/sweep={sweep}/{attempt_id}{suffix}.parquet"


def attempt_path(sweep: str, attempt_id: str) -> str:
    """Return where an attempt keeps its state."""
    return f"attempts/sweep={sweep}/{attempt_id}.json"


def log_path(sweep: str, attempt_id: str) -> str:
    """Return where the end of an attempt's output is kept."""
    return f"attempts/sweep={sweep}/{attempt_id}.log"


def checkpoint_folder(pack_id: str) -> str:
    """Return the folder of a pack's checkpoints."""
    return f"checkpoints/{pack_id}"


def checkpoint_path(pack_id: str, name: str) -> str:
    """Return where a pack keeps the checkpoint called `name`."""
    return f"checkpoints/{pack_id}/{name}.ckpt"


def checkpoint_trials_path(pack_id: str) -> str:
    """Return where it is written which trials a checkpointed pack holds."""
    return f"checkpoints/{pack_id}/pack.json"


def fits_path(sweep: str) -> str:
    """Return where a sweep's newest fits are kept."""
    return f"fits/sweep={sweep}/fits.parquet"


def attempt_of_table_path(path: str) -> tuple[str, str]:
    """Return (sweep, attempt_id) of a path that `table_path` made."""
    pure = PurePosixPath(path)
    return pure.parent.name.removeprefix("sweep="), pure.stem.split("-")[0]
