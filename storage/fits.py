"""The fits table: one small file a sweep, replaced whole."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.files import Files
from storage.layout import fits_path
from storage.schema import FITS


def write_fits(files: Files, sweep: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the fits of a sweep by these rows."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=FITS), sink)
    files.write(fits_path(sweep), sink.getvalue())
