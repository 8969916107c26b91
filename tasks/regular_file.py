"""Reading files whole that are files and no larger than they can be: no pipe that never answers, no device without an end."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return a file's content; links are followed, and nothing is waited for.

    Raises:
        FileNotFoundError: there is none.
        OSError: it is no file, has more than `most_bytes`, or cannot be read.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(opened, "rb") as file:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is no file but a pipe, a device, a socket or a folder")
        if status.st_size > most_bytes:
            raise OSError(
                f"{path} has {status.st_size / 2**20:.0f} MB, where such a file has at most {most_bytes >> 20}"
            )
        return file.read(most_bytes)
