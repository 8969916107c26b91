"""Tables of a user: columns of any type are the numbers that they hold, or are refused by name with a value."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest

from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.supervised.data import CustomData
from depthrate.tasks.supervised.task import TARGETS
from tests.support.own_data import data_of_function

Y = np.arange(12) % 3
N = np.arange(12.0)


def read_by(way, x, tmp_path, target="own"):
    """Read a table of samples from a file or from a function, and return its data set."""
    y = N if target == "regression" else Y
    if way == "file":
        x.assign(y=y).to_parquet(tmp_path / "d.parquet")
        return CustomData(tmp_path / "d.parquet", TARGETS[target]).read({})
    forms = {"table": x, "mapping": x, "values": x.to_numpy(), "polars": None, "items": None}
    given = forms[way] if way in ("table", "values") else {"x": forms[way], "y": y}
    if way == "items":
        rows = x.to_numpy()
        given = type("Items", (), {"__len__": lambda _: 12, "__getitem__": lambda _, i: (rows[i], y[i])})()
    elif way == "polars":
        given = {"x": pl.from_pandas(x), "y": y}
    elif way != "mapping":
        given = (given, y)
    return data_of_function(lambda: given, target).read({})


NUMBERS = {
    "nullable int": pd.array(range(12), dtype="Int64"),
    "nullable float": pd.array(N, dtype="Float64"),
    "nullable bool": pd.array(N > 5, dtype="boolean"),
    "bool": N > 5,
    "arrow int": pd.array(range(12), dtype="int64[pyarrow]"),
    "arrow bool": pd.array(N > 5, dtype="bool[pyarrow]"),
    "objects": np.array([1, 2.5, True] * 4, object),
    "categories that are numbers": pd.Categorical(range(12)),
    "decimal": [Decimal(f"{i}.5") for i in range(12)],
    "float32": N.astype(np.float32),
}


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("way", ["file", "table", "mapping", "values", "items"])
def test_columns_of_numbers_are_read(tmp_path, way, kind):
    if kind == "objects" and way == "file":
        pytest.skip("Parquet has no columns of several types")
    table = pd.DataFrame({"a": NUMBERS[kind], "b": N / 7, "c": pd.array(range(12), dtype="Int8")})
    data = read_by(way, table, tmp_path, "regression")
    expected = np.stack([np.array(list(NUMBERS[kind]), float), N / 7, N], 1)
    np.testing.assert_allclose(data.x_NI.astype(float), expected, rtol=1e-6)


def test_accepted_tables_keep_their_hash(tmp_path):
    """If this fails, trials on such tables in every store are other trials."""
    for table, expected in (
        (pd.DataFrame({"a": N.astype(np.float32), "b": np.arange(12)}), np.stack([N, N], 1)),
        (pd.DataFrame({"a": N.astype(np.int8), "b": N.astype(np.int32)}), np.stack([N, N], 1).astype(np.int32)),
        (pd.DataFrame({"a": N > 5, "b": N > 2}), np.stack([N > 5, N > 2], 1)),
    ):
        plain = data_of_function(lambda expected=expected: (expected, Y)).read({})
        assert read_by("file", table, tmp_path).content_hash == plain.content_hash
        assert read_by("polars", table, tmp_path).content_hash == plain.content_hash


def with_one(value, entry):
    return [*[value] * 7, entry, *[value] * 4]


REFUSED = {
    "text": (["95", "?"] * 6, "has '\\?' in row 1, and 12 of its 12 entries are not finite numbers"),
    "one text": (np.array(with_one(1.5, "n/a"), object), "has 'n/a' in row 7, and 1 of its 12"),
    "NA of int": (pd.array(with_one(1, None), dtype="Int64"), "has (<NA>|nan) in row 7, and 1 of its 12"),
    "NA of bool": (pd.array(with_one(True, None), dtype="boolean"), "has (<NA>|None) in row 7"),
    "NA of Arrow": (pd.array(with_one(1, None), dtype="int64[pyarrow]"), "has (<NA>|nan) in row 7"),
    "NaN": (with_one(1.0, np.nan), "has nan in row 7, and 1 of its 12"),
    "infinite": (with_one(1.0, np.inf), "has inf in row 7"),
    "all missing": ([None] * 12, "has None in row 0, and 12 of its 12"),
    "date": (pd.date_range("2020-01-01", periods=12), "has 2020-01-01"),
    "duration": (pd.to_timedelta(range(12), unit="h"), "has 0"),
    "categories": (pd.Categorical(["red", "blue"] * 6), "has 'red' in row 0"),
    "bytes": ([b"x"] * 12, "has b'x' in row 0"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("way", ["file", "table"])
def test_other_columns_are_refused_by_name(tmp_path, way, alone, kind):
    if way == "file" and kind == "one text":
        pytest.skip("Parquet has no columns of several types")
    values, words = REFUSED[kind]
    table = pd.DataFrame({"power": values} if alone else {"f": N, "power": values, "n": range(12)})
    with pytest.raises(DatasetError, match=f"column 'power' {words}"):
        read_by(way, table, tmp_path)


def test_a_row_is_named_by_the_tables_index(tmp_path):
    table = pd.DataFrame({"f": with_one(1.0, np.nan)}, index=range(100, 112))
    with pytest.raises(DatasetError, match="column 'f' has nan in row 107"):
        read_by("table", table, tmp_path)
    frame = pd.DataFrame({"f": with_one(1.0, np.nan), "y": Y, "split": ["train", "test"] * 6})
    frame.to_parquet(tmp_path / "d.parquet")
    with pytest.raises(DatasetError, match="column 'f' has nan in row 7, and 1 of its 6"):
        CustomData(tmp_path / "d.parquet", TARGETS["own"]).read({})


def test_lists_in_a_column_are_arrays(tmp_path):
    signals = np.random.default_rng(0).normal(size=(12, 2, 5))
    pd.DataFrame({"x": [one.tolist() for one in signals], "y": Y}).to_parquet(tmp_path / "d.parquet")
    nested = CustomData(tmp_path / "d.parquet", TARGETS["own"]).read({})
    assert nested.content_hash == data_of_function(lambda: (signals, Y)).read({}).content_hash
    pd.DataFrame({"x": [[1.0] * (1 + i % 2) for i in range(12)], "y": Y}).to_parquet(tmp_path / "d.parquet")
    with pytest.raises(DatasetError, match="lists differ in form"):
        CustomData(tmp_path / "d.parquet", TARGETS["own"]).read({})


def test_targets_in_nullable_columns_are_numbers(tmp_path):
    table = pd.DataFrame({"a": N, "y": pd.array(range(12), dtype="Float64")})
    table.to_parquet(tmp_path / "d.parquet")
    read = CustomData(tmp_path / "d.parquet", TARGETS["regression"]).read({})
    assert read.labels_N[:, 0].tolist() == N.tolist()
    targets = table[["y"]].assign(z=pd.array(N > 3, dtype="boolean"))
    assert data_of_function(lambda: (table[["a"]], targets), "regression").read({}).labels_N.shape == (12, 2)
    targets.loc[4, "z"] = pd.NA
    with pytest.raises(DatasetError, match="targets: column 1 has <NA> in row 4, and 1 of its 12"):
        data_of_function(lambda: (table[["a"]], targets), "regression").read({})
