"""Which versions of depthrate may read a store, and which may write to it: `format.json`, one small file at its top.

A store without that file is of format 1, as all are that were made before there was one. The least versions are raised by
whoever first writes what older versions would misread or damage, before it is written, and never lowered. A version raises
nothing by columns that it adds: those are carried on by versions that do not know them.

Formats:
1. Before `format.json`. Versions of it do not look for the file.
2. Every launch has its list of trials with a checksum, which purges rely on. Versions of format 1 read and write it as ever.
"""

from __future__ import annotations

from dataclasses import dataclass

from depthrate.storage.files.json_objects import read_with_digest, with_digest

FORMAT = 2
"""The newest format that this version reads and writes."""
FORMAT_FILE = "format.json"


@dataclass(frozen=True)
class Format:
    """What a store says of its format."""

    format: int = 1
    """Up to which it was upgraded."""
    min_reader: int = 1
    """Versions that know only older formats would misread it."""
    min_writer: int = 1
    """Versions that know only older formats would damage it."""
    needs: str = ""
    """The version of depthrate that raised these last, in its own words."""
    fault: str = ""
    """Why the file cannot be believed; empty where it can."""

    @staticmethod
    def from_bytes(content: bytes) -> Format:
        """Return what a file says; one that is not as it was written comes with its fault."""
        try:
            fields = read_with_digest(content)
            number, reader, writer = (fields[name] for name in ("format", "min_reader", "min_writer"))
            if not all(type(each) is int and 0 < each < 10**6 for each in (number, reader, writer)):
                raise ValueError("its formats are no numbers")
            return Format(number, reader, writer, str(fields.get("needs", ""))[:80])
        except (ValueError, KeyError, TypeError) as error:
            return Format(fault=f"{type(error).__name__}: {error}"[:200])

    def to_bytes(self) -> bytes:
        """Return the file that says so."""
        fields = {"format": self.format, "min_reader": self.min_reader, "min_writer": self.min_writer}
        return with_digest(fields | {"needs": self.needs})

    def refusal_message(self, url: str, *, writing: bool) -> str | None:
        """Return why this version must not read, or not write to, a store of this format; None where it may."""
        if self.fault and writing:
            return (
                f"{FORMAT_FILE} in store {url} is not as it was written ({self.fault}), so that nobody knows which version of "
                "depthrate may write to it; nothing was written: put it back from a backup, or delete it if no version newer "
                "than this one was ever used there"
            )
        least = self.min_writer if writing else self.min_reader
        if least <= FORMAT:
            return None
        needed = f"depthrate {self.needs} or newer" if self.needs else f"a newer depthrate, of format {least}"
        return (
            f"store {url} needs {needed} to be {'written to' if writing else 'read'}: it is of format {least}, and this "
            f"version knows formats up to {FORMAT}; nothing was {'written' if writing else 'read'}: install that version where "
            "this command runs (pip install --upgrade depthrate, or git pull in its checkout)"
        )
