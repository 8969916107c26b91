"""Records of attempts that older versions have put together lack columns that came later."""

import pyarrow as pa
import pytest

from depthrate.storage.records import completed_attempts
from depthrate.storage.schema import ATTEMPTS


def test_what_they_did_not_write_is_null():
    table = pa.Table.from_pylist([{"attempt_id": "a", "step": 3}], ATTEMPTS).append_column("log", pa.array([b"x"]))
    older = table.drop_columns(["engine", "compile_s"])
    assert completed_attempts(older) == table
    assert completed_attempts(table) == table


def test_what_all_have_written_must_be_there():
    with pytest.raises(KeyError, match="no column state"):
        completed_attempts(pa.Table.from_batches([], ATTEMPTS).drop_columns(["state", "engine"]))
