"""Parse the answers of SLURM's commands: records of `Key=Value`, tables, columns of fixed width, numbers, times.

Sites print banners around an answer. Administrators' comments contain anything, such as keys and bytes that are not UTF-8.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from depthrate.slurm.errors import SlurmError

_TEXT_INSIDE = re.compile(
    r" JobName=.*?(?= UserId=[^ ]*\(\d+\) )| OS=.*?(?= RealMemory=\d+ AllocMem=)|( JobState=[^ ]*) Reason=.*?(?= Dependency=)"
)
_TEXT_AT_END = re.compile(r" (?:Reason|Comment|AdminComment|SystemComment|Extra|Command|WorkDir)=")
"""Keys of free text behind all keys that are read. Only a job's Reason is not at the end of its record."""


def parse_records(text: str, key: str) -> list[dict[str, str]]:
    """Parse `scontrol --oneliner show`: one record per line that starts with `key`, the first per value of this key."""
    records: dict[str, dict[str, str]] = {}
    for line in text.split("\n"):
        if line.startswith(f"{key}="):
            keys = _TEXT_AT_END.split(_TEXT_INSIDE.sub(r"\1", line.rstrip()), maxsplit=1)[0]
            fields = parse_settings(keys.replace(" ", "\n"))
            records.setdefault(fields[key], fields)
    return list(records.values())


def parse_settings(text: str) -> dict[str, str]:
    """Parse lines of `Key = Value`, the first per key."""
    lines = [line.partition("=") for line in text.split("\n")]
    return {key.strip(): value.strip() for key, separator, value in reversed(lines) if separator}


def parse_table(text: str, columns: Sequence[str], command: str) -> list[dict[str, str]]:
    """Parse a table of cells between `|`. Without a header of these columns its first columns are these.

    Raises:
        SlurmError: If the text is neither empty nor a table.
    """
    rows = [line.strip().split("|") for line in text.split("\n")]
    start = next((index + 1 for index, row in enumerate(rows) if set(columns) <= set(row)), 0)
    header = rows[start - 1] if start else list(columns)
    table = [dict(zip(header, row, strict=False)) for row in rows[start:] if len(row) >= len(header)]
    if text.strip() and not table and not start:
        raise unexpected_answer(command, text)
    return table


def parse_columns(text: str, columns: Sequence[str], command: str) -> list[dict[str, str]]:
    """Parse lines of `Name:width` columns, whose widths count bytes. A line without an ArrayJobID is not a row.

    Raises:
        SlurmError: If the text is neither empty nor such lines.
    """
    rows = []
    for line in text.encode(errors="surrogateescape").split(b"\n"):
        row, start = {}, 0
        for name, _, width in (column.partition(":") for column in columns):
            row[name] = line[start : start + int(width)].decode(errors="replace").strip()
            start += int(width)
        rows += [row] if parse_integer(row["ArrayJobID"]) is not None else []
    if text.strip() and not rows:
        raise unexpected_answer(command, text)
    return rows


def parse_integer(text: str) -> int | None:
    """Parse a non-negative integer. Return None for another string."""
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else None


def read_integer(fields: Mapping[str, str], key: str) -> int:
    """Return the integer of a record's key.

    Raises:
        SlurmError: If the key is missing or has another value.
    """
    if (number := parse_integer(fields.get(key, ""))) is None:
        raise unexpected_answer("scontrol show", f"{key}={fields.get(key, '')}")
    return number


def parse_time(text: str) -> float | None:
    """Parse a time in UTC to seconds since the epoch. Return None for `N/A` and other strings."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def parse_local_time(text: str, now: float) -> float:
    """Parse a time in the local zone. In the hour that a time change repeats, return the first such time after `now`."""
    times = [datetime.fromisoformat(text).replace(fold=fold).timestamp() for fold in (0, 1)]
    return next((at for at in times if at >= now), times[1])


def unexpected_answer(command: str, text: str) -> SlurmError:
    """Return the error about an answer that cannot be parsed."""
    return SlurmError(f"{command} printed {text.strip()[:200]!r}, which is not its usual answer. Run it to see more.")
