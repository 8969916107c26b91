"""A data source over a local folder, for tests."""

from dataclasses import dataclass
from pathlib import Path


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
