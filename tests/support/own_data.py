"""A data source over a local folder, and a user's function as data, for tests."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from depthrate.tasks.data.dataset import Dataset


@dataclass(frozen=True)
class Folder:
    """What `tasks.data.sources.DataSource` asks for."""

    url: str

    def find(self, folder, names):
        paths = [f"{folder}/{name}" if folder else name for name in names]
        return next((path for path in paths if (Path(self.url) / path).is_file()), None)

    def read(self, path):
        return (Path(self.url) / path).read_bytes()

    def open(self, path):
        return (Path(self.url) / path).open("rb")


def data_of_function(make, target="own"):
    """Return what a sweep's `dataset: d.py:make` is read by."""
    from depthrate.tasks.supervised.data import CustomData
    from depthrate.tasks.supervised.task import TARGETS
    from depthrate.tasks.supervised.user_callable import UserCallable

    return CustomData(UserCallable(make=make, name="d:make"), TARGETS[target])


def dataset_of(x, labels_N, **fields):
    """Return labelled samples [N, *shape], sorted by class, as a data set."""
    order = np.argsort(labels_N, kind="stable")
    flat_NI = np.ascontiguousarray(x.reshape(len(x), -1)[order])
    return Dataset(flat_NI, labels_N[order], np.bincount(labels_N), x.shape[1:], **fields)
