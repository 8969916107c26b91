"""Bounded reads of regular files: never a pipe that blocks or a device without an end."""

import os
import stat
from pathlib import Path


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Read a regular file, following links, without blocking.

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: It is not a regular file, has more than `max_bytes`, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is not a regular file, but a pipe, a device, a socket or a folder")
        if status.st_size > max_bytes:
            raise OSError(f"{path} has {status.st_size / 2**20:.0f} MB (limit {max_bytes >> 20} MB)")
        return file.read(max_bytes)
