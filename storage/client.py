"""How a remote store's client is opened, and its errors as ours."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any


def client_options(url: str) -> dict[str, Any]:
    """Return what a kind of store is opened with; what users set in their environment stays theirs to set."""
    if not url.startswith(("s3://", "s3a://")):
        return {}
    config: dict[str, Any] = {"connect_timeout": 10, "read_timeout": 60}
    if not {"AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS"} & os.environ.keys():
        config["retries"] = {"mode": "standard", "max_attempts": 6}  # back-off with jitter on throttling and 5xx
    return {"use_listings_cache": False, "config_kwargs": config}


@contextlib.contextmanager
def as_os_error(url: str) -> Iterator[None]:
    """Turn what a store's client raises into OSError, which callers know: it names the store."""
    try:
        yield
    except (OSError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except Exception as error:
        raise OSError(f"store {url}: {type(error).__name__}: {error}") from error
