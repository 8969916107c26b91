"""Versions of depthrate that may read or write a store: `format.json`, one small file at its root.

A store without that file has format 1, as all stores had before the file was introduced. The first process to write data that
older versions would misread or damage raises the minimum versions before it writes. They are never lowered. A version that only
adds columns does not raise them, since versions that do not know the columns preserve them.

Formats:

1. Before `format.json`. Versions of this format do not check the file.
2. Every launch has a list of its trials with a checksum, and purges rely on it. Versions of format 1 read and write it
  unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from depthrate.storage.files.json_objects import read_with_digest, with_digest

FORMAT = 2
"""The newest format that this version reads and writes."""
FORMAT_FILE = "format.json"
"""Path of the file with the format."""


@dataclass(frozen=True)
class Format:
    """Content of a store's `format.json`."""

    format: int = 1
    """Format after the last upgrade."""
    min_reader: int = 1
    """Lowest format that a version must support to read the store correctly."""
    min_writer: int = 1
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
        if self.fault and writing:
            return (
                f"cannot write to store {url}: {FORMAT_FILE} is corrupt ({self.fault}), so the versions of depthrate that may "
                "write are unknown. Nothing was written. Restore the file from a backup, or delete it if the store was never "
                "used with a newer version."
            )
        min_format = self.min_writer if writing else self.min_reader
        if min_format <= FORMAT:
            return None
        needed = f"depthrate {self.needs} or newer" if self.needs else f"a depthrate that supports format {min_format}"
        return (
            f"cannot {'write to' if writing else 'read'} store {url}: it has format {min_format}, this version supports "
            f"formats up to {FORMAT}. Nothing was {'written' if writing else 'read'}. Install {needed} where this command "
            "runs (pip install --upgrade depthrate, or git pull in its checkout)."
        )
