"""Features of one layer, out of a file of many: only the row groups that hold it are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from depthrate.storage.parquet import open_parquet
from depthrate.storage.store import Store

if TYPE_CHECKING:
    import numpy as np


def read_layer(
    store: Store, path: str, layer: int, counting: Mapping[str, str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (trial, labels, features) of one layer of some trials (trial -> attempt), from the row groups that hold it."""
    with store.open(path) as file, open_parquet(file) as parquet:
        metadata = parquet.metadata
        names = [metadata.row_group(0).column(i).path_in_schema for i in range(metadata.num_columns)]
        sought = [(names.index("layer"), layer)] + [
            (names.index("trial_id"), one) for one in counting if len(counting) < 2
        ]

        def may_hold(group: int) -> bool:
            ranges = [(metadata.row_group(group).column(column).statistics, value) for column, value in sought]
            return all(not s or not s.has_min_max or s.min <= value <= s.max for s, value in ranges)

        for group in filter(may_hold, range(metadata.num_row_groups)):
            table = parquet.read_row_group(group, columns=["trial_id", "attempt_id", "layer", "label", "feature"])
            yield from _trials_of_layer(table, layer, counting)


def _trials_of_layer(
    table: pa.Table, layer: int, counting: Mapping[str, str]
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    import numpy as np  # here: most queries ask for no features

    trials, attempts = np.array(table["trial_id"].to_pylist()), np.array(table["attempt_id"].to_pylist())
    rows = table["layer"].to_numpy() == layer
    feature = table["feature"].combine_chunks()
    features = feature.flatten().to_numpy(zero_copy_only=False).reshape(len(feature), -1)
    labels = table["label"].to_numpy()
    for trial in dict.fromkeys(trials[rows].tolist()):
        if trial in counting and (chosen := rows & (trials == trial) & (attempts == counting[trial])).any():
            yield str(trial), labels[chosen], features[chosen]
