"""The one faulty store of the tests: its writes fail before, amid or after the content is stored."""

import random
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from depthrate.storage.files.store import Store


def fail_write(
    write: Callable[..., None], path: str, content: bytes, moment: str, error: type[BaseException], **options: Any
) -> NoReturn:
    """Fail "before", "amid" or "after" a write: amid one, a local writer leaves half of its draft."""
    if moment == "amid":
        folder, _, name = path.rpartition("/")
        write(f"{folder}/.{name}.0.tmp", content[: len(content) // 2])
    elif moment == "after":
        write(path, content, **options)
    raise error(f"injected {moment} the write")


def make_writes_fail(
    patch: pytest.MonkeyPatch, moment_of: Callable[[str], str | None], error: type[BaseException] = OSError
) -> list[str]:
    """Make the writes of this process fail at the moment that a function returns for their path.

    Returns the paths that were written or tried, which grows with each write.
    """
    plain, tried = Store.write, list[str]()

    def write(store: Store, path: str, content: bytes, **options: Any) -> None:
        tried.append(path)
        if moment := moment_of(path):
            fail_write(lambda *given, **more: plain(store, *given, **more), path, content, moment, error, **options)
        plain(store, path, content, **options)

    patch.setattr(Store, "write", write)
    return tried


def at_random(rng: random.Random, share: float, moments: tuple[str, ...]) -> str | None:
    """Return one of these moments for a share of the writes, and None for the others."""
    return rng.choice(moments) if rng.random() < share else None
