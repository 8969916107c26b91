"""Unfinished writes of killed processes: temporary files in a folder, and multipart uploads that still cost storage."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from depthrate.storage.files.protocol import is_hidden
from depthrate.storage.files.remote import as_os_error
from depthrate.storage.files.store import Store

_UPLOAD = "?uploadId="
"""Separator between a key and the ID of a multipart upload that was never completed."""


def list_unfinished_writes(store: Store, older_than_s: float) -> Sequence[str]:
    """List unfinished writes of killed processes: temporary files, or multipart uploads that still cost storage.

    Args:
        older_than_s: Minimum age in seconds, since younger writes may be in progress.
    """
    before = time.time() - store.clock_ahead_s - older_than_s
    if store.is_local:
        drafts = [path for path, _ in store.files.walk("") if is_unfinished(path)]
        return [path for path in drafts if (store.modified(path) or before) < before]
    if not store.is_s3:
        return []
    bucket, _, prefix = store.root.partition("/")
    with as_os_error(store.url):
        response = store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{prefix}/" if prefix else "")
    return [
        f"{upload['Key'][len(prefix) :].lstrip('/')}{_UPLOAD}{upload['UploadId']}"
        for upload in response.get("Uploads", [])
        if upload["Initiated"].timestamp() < before
    ]


def is_unfinished(path: str) -> bool:
    """Return whether `list_unfinished_writes` can return this path."""
    return _UPLOAD in path or (is_hidden(path) and path.endswith(".tmp"))


def remove_unfinished(store: Store, path: str) -> None:
    """Delete an unfinished write."""
    key, _, upload = path.partition(_UPLOAD)
    if not upload:
        Path(store.full_path(path)).unlink(missing_ok=True)
        return
    bucket, _, full = store.full_path(key).partition("/")
    with as_os_error(store.url), contextlib.suppress(FileNotFoundError):
        store.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=full, UploadId=upload)
