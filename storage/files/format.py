"""Format of a store: `format.json`, one small file at its root, written before anything else.

Format 3 is described in `docs/reference/store-format.md`. A version of depthrate reads and writes stores from format 3 on. A
version that writes data which older versions would misread or damage raises the minimum formats before it writes. They
are never lowered. A version that only adds columns or keys does not raise them, since readers ignore what they do not know, and
rewriting preserves columns.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from depthrate.storage.files.json_objects import read_with_digest, with_digest

FORMAT = 3
"""The newest format that this version reads and writes."""
OLDEST_FORMAT = 3
"""The oldest format that this version reads and writes."""
FORMAT_FILE = "format.json"
"""Path of the file with the format."""


@dataclass(frozen=True)
class Format:
    """Content of a store's `format.json`."""

    format: int = FORMAT
    """Format of the data."""
    min_reader: int = FORMAT
    """Lowest format that a version must support to read the store correctly."""
    min_writer: int = FORMAT
    """Lowest format that a version must support to write to the store without damaging it."""
    needs: str = ""
    """Version of depthrate that last raised these minimum formats."""
    fault: str = ""
    """Reason why the file is corrupt, or an empty string."""

    @staticmethod
    def from_bytes(content: bytes) -> Format:
        """Parse a file's content. If it is corrupt, the result has a `fault`."""
        try:
            fields = read_with_digest(content)
            number, reader, writer = (fields[name] for name in ("format", "min_reader", "min_writer"))
            if not all(type(version) is int and 0 < version < 10**6 for version in (number, reader, writer)):
                raise ValueError("its formats are not positive integers")
            return Format(number, reader, writer, str(fields.get("needs", ""))[:80])
        except (ValueError, KeyError, TypeError) as error:
            later = re.search(rb'"(?:format|min_reader)": *(\d{1,5})\b', content)
            if later is not None and int(later[1]) > FORMAT:  # written by a later version in another form
                return Format(int(later[1]), int(later[1]), int(later[1]))
            return Format(fault=f"{type(error).__name__}: {error}"[:200])

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        fields = {"format": self.format, "min_reader": self.min_reader, "min_writer": self.min_writer}
        return with_digest(fields | {"needs": self.needs})

    def refusal_message(self, url: str, *, writing: bool) -> str | None:
        """Return the reason why this version must not read or write a store of this format, or None if it may."""
        verb, done = ("write to", "written") if writing else ("read", "read")
        if self.format < OLDEST_FORMAT:
            return (
                f"cannot {verb} store {url}: it has format {self.format}, this version supports formats from {OLDEST_FORMAT}. "
                f"Nothing was {done}. Use the version of depthrate that wrote it, or pass another store with --store."
            )
        if self.fault and writing:
            return (
                f"cannot write to store {url}: {FORMAT_FILE} is corrupt ({self.fault}), so the versions of depthrate that may "
                "write are unknown. Nothing was written. Restore the file from a backup."
            )
        min_format = self.min_writer if writing else self.min_reader
        if min_format <= FORMAT:
            return None
        needed = f"depthrate {self.needs} or newer" if self.needs else f"a depthrate that supports format {min_format}"
        return (
            f"cannot {verb} store {url}: it has format {min_format}, this version supports formats up to {FORMAT}. Nothing "
            f"was {done}. Install {needed} where this command runs (pip install --upgrade depthrate, or git pull in its "
            "checkout)."
        )
