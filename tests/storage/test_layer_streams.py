"""Features written layer by layer: the same file as when written at once, and one layer read per request."""

import itertools
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from depthrate.storage.files.parquet import feature_bytes, open_parquet
from depthrate.storage.files.store import Store
from depthrate.storage.query.features import read_layer
from depthrate.storage.tables.feature_file import FeatureFile
from depthrate.storage.tables.from_task import layer_parts, task_table
from depthrate.storage.tables.schema import TableError


def part(trial, layer, num_rows, width=64, dtype=np.float32):
    rng = np.random.default_rng([layer, num_rows])
    columns = {
        "layer": np.full(num_rows, layer),
        "kind": np.full(num_rows, "sample"),
        "label": np.arange(num_rows) % 3,
        "sample_index": np.arange(num_rows),
        "feature": rng.normal(size=(num_rows, width)).astype(dtype),
    }
    return task_table("features", columns, None, trial_id=trial, attempt_id="a")


@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [1, 700, 5000])
def test_a_file_is_the_same_however_its_layers_come(tmp_path, num_rows):
    parts = [part(trial, layer, num_rows) for trial in ("x", "y") for layer in range(7)]
    whole = feature_bytes(pa.concat_tables(parts).combine_chunks())
    store = Store(str(tmp_path))
    for name, pieces in {"layers": parts, "trials": [pa.concat_tables(parts[:7]), pa.concat_tables(parts[7:])]}.items():
        file = FeatureFile()
        for piece in pieces:
            file.add(piece)
        written = file.write(store, f"features/{name}.parquet")
        file.close()
        content = store.read(written.path)
        assert written.has_content(content) and written.rows == 14 * num_rows
        one, other = open_parquet(content), open_parquet(whole)
        assert one.read().equals(other.read())
        sizes = [[f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)] for f in (one, other)]
        assert sizes[0] == sizes[1] and (num_rows < 5000 or sizes[0] == [5000] * 14)


def test_vectors_of_two_lengths_are_refused():
    file = FeatureFile()
    file.add(part("x", 0, 3))
    with pytest.raises(TableError, match="vectors of .*5.* after .*64"):
        file.add(part("x", 1, 3, width=5))
    file.close()


def test_rows_that_come_after_the_store_has_refused_stand_behind_those_before(tmp_path, monkeypatch):
    parts, store, file = (
        [part(trial, layer, 5000) for trial in "xyz" for layer in range(2)],
        Store(str(tmp_path)),
        FeatureFile(),
    )
    for number, pieces in enumerate((parts[:2], parts[2:4], parts[4:])):
        for piece in pieces:
            file.add(piece)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "write", mock.Mock(side_effect=OSError("full")))
            for _ in range(2):
                with pytest.raises(OSError, match="full"):
                    file.write(store, f"features/refused-{number}.parquet")
    written = file.write(store, "features/all.parquet")
    file.close()
    content = store.read(written.path)
    assert written.has_content(content) and written.rows == 30_000
    with open_parquet(content) as one, open_parquet(feature_bytes(pa.concat_tables(parts).combine_chunks())) as other:
        assert one.read().equals(other.read()) and one.schema_arrow.equals(other.schema_arrow, check_metadata=True)
        assert one.num_row_groups == other.num_row_groups


def test_tables_iterators_and_what_has_parts():
    class Kept:
        def parts(self):
            return iter([1, 2])

    found = [list(layer_parts(content)) for content in (None, {"layer": [1]}, iter([1, 2]), Kept())]
    assert found == [[], [{"layer": [1]}], [1, 2], [1, 2]]


@pytest.mark.parametrize("url", ["memory://streams", "local"])
def test_a_layer_takes_two_requests_and_one_more_where_the_file_is_large(tmp_path, url, monkeypatch):
    store = Store(str(tmp_path) if url == "local" else url)
    file = FeatureFile()
    for layer in range(12):
        file.add(part("x", layer, 5000))
    written = file.write(store, "features/sweep=s/a.parquet")
    file.close()
    requests = []
    read_range = Store.read_range
    monkeypatch.setattr(Store, "read_range", lambda self, *given: requests.append(given) or read_range(self, *given))
    for layer in (0, 5, 11):
        requests.clear()
        ((trial, labels, features),) = read_layer(store, written, layer, {"x": "a"})
        expected = part("x", layer, 5000)
        assert trial == "x" and labels.tolist() == expected["label"].to_pylist()
        np.testing.assert_array_equal(features, np.stack(expected["feature"].to_pylist()))
        footer, *others = requests
        assert footer[2] == written.size and len(others) <= 2
        assert sum(stop - start for _, start, stop in others) < 1.5 * written.size / 12
    assert all(one != other for one, other in itertools.pairwise(requests))
