"""Attempt records compacted by older versions lack newer columns."""

import pyarrow as pa
import pytest

from depthrate.storage.tables.schema import ATTEMPTS, OPTIONAL_ATTEMPTS_COLUMNS, as_attempts


def test_what_they_did_not_write_is_null():
    table = pa.Table.from_pylist([{"attempt_id": "a", "step": 3}], ATTEMPTS).append_column("log", pa.array([b"x"]))
    older = table.drop_columns(list(OPTIONAL_ATTEMPTS_COLUMNS))
    assert as_attempts(older) == table
    assert as_attempts(table) == table


def test_what_all_have_written_must_be_there():
    with pytest.raises(KeyError, match="state"):
        as_attempts(pa.Table.from_batches([], ATTEMPTS).drop_columns(["state", "engine"]))
