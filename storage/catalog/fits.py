"""The fits table: one small file per sweep, replaced as a whole."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.paths import fits_path
from depthrate.storage.files.store import Store
from depthrate.storage.tables.schema import FITS

ADDED_LATER = frozenset(
    {"is_adequate", "state", "group_states", "variables", "layer_fraction", "loss_function", "huber"}
)
"""Columns that files of earlier versions lack. They are null there."""
RENAMED = {"product": "power", "sum": "power_floor", "log_product": "power_log", "log2_product": "power_log2"}
"""Form in several variables as earlier versions called it -> its name."""


def write_fits(store: Store, sweep: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replace the fits of a sweep with these rows."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows], schema=FITS), sink)
    store.write(fits_path(sweep), sink.getvalue(), durable=True)


def parse_fits(content: bytes) -> pa.Table:
    """Parse a fits file. Forms have their current names.

    Raises:
        pyarrow.ArrowException, KeyError: The content is not a fits table.
    """
    table = read_parquet(content)
    for name in ADDED_LATER - {*table.column_names}:
        table = table.append_column(name, pa.nulls(len(table), FITS.field(name).type))
    for name in ("model", "preferred") if {*RENAMED} & {*table["model"].to_pylist()} else ():
        texts = [
            text and " or ".join(RENAMED.get(form, form) for form in text.split(" or "))
            for text in table[name].to_pylist()
        ]
        table = table.set_column(table.column_names.index(name), name, pa.array(texts, FITS.field(name).type))
    return table.select(FITS.names).cast(FITS)
