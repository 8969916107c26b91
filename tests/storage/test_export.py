"""Export of a query's rows of any type as CSV, JSON and Parquet."""

from __future__ import annotations

import io
import json

import duckdb
import pyarrow.parquet as pq
import pytest

from depthrate.storage.query.row_writers import write_csv, write_json, write_parquet
from depthrate.storage.query.sql_checks import QueryError

ALL_TYPES = duckdb.sql("select * from test_all_types()").columns
EXPRESSIONS = {
    "'a\\xE4'::blob": "a\\xE4",
    "interval '1 month 3 days'": "1 month 3 days",
    "{'a': interval '1 day'}": "{'a': 1 day}",
    "union_value(a := 1)": "1",
    "time '10:00:00'": "10:00:00",
    "'101'::bit": "101",
    "sum(2)": 2,
    "170141183460469231731687303715884105727::hugeint": 2**127 - 1,
    "1.50::decimal(4,2)": 1.5,
    "map{1: 2.5, 2: 'nan'::double}": [[1, 2.5], [2, None]],
    "timestamptz '2020-01-01 00:00:00+00'": "2020-01-01T00:00:00+00:00",
}
"""SQL and its value in JSON."""


@pytest.mark.parametrize(("expression", "value"), EXPRESSIONS.items())
def test_a_value_of_any_type_is_json(expression: str, value: object) -> None:
    sink = io.StringIO()
    write_json(duckdb.connect().sql(f"select {expression} as x, 1 as y, 2 as y"), sink)
    assert json.loads(sink.getvalue()) == [{"x": value, "y": 2}]


@pytest.mark.parametrize("column", ALL_TYPES)
def test_each_type_of_duckdb_is_written_or_refused(column: str) -> None:
    relation = duckdb.connect().sql(f'select "{column}" from test_all_types()')
    written = 0
    for write, sink in ((write_csv, io.StringIO()), (write_json, io.StringIO()), (write_parquet, io.BytesIO())):
        try:
            write(relation, sink)
        except QueryError as error:
            assert "::varchar" in str(error)
        else:
            written += 1
    assert written or column == "empty_struct"


def test_intervals_are_texts_in_parquet() -> None:
    sink = io.BytesIO()
    write_parquet(duckdb.sql("select interval '1 month 3 days' as x, 'a'::blob as y, 'b' as \"a \"\"b\""), sink)
    assert pq.read_table(sink).to_pylist() == [{"x": "1 month 3 days", "y": b"a", 'a "b': "b"}]
