"""depthrate data: what is there, and fetching what is not, from a publisher on this machine."""

import dataclasses
import functools
import gzip
import hashlib
import re
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from depthrate.tasks.data.fetch import downloads_of
from depthrate.tasks.data.published import PUBLISHED
from tests.support import here
from tests.support.here import is_root

CONTENT = {"train-images-idx3-ubyte.gz": b"images", "train-labels-idx1-ubyte.gz": b"labels"}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[str]:
    """Two files behind HTTP; the address of their folder."""
    pytest.importorskip("pooch")
    folder = tmp_path / "publisher"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEPTHRATE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def publish(monkeypatch: pytest.MonkeyPatch, base: str, checksums: dict[str, str] | None = None) -> None:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()} | (checksums or {})
    served = dataclasses.replace(PUBLISHED["mnist"], files_url=base, sha256=tuple(sums.values()))
    monkeypatch.setitem(PUBLISHED, "mnist", served)


def invoke(*arguments: str) -> tuple[int, str]:
    return here.invoke("data", *arguments)


def test_list_shows_present_and_missing(data: Path) -> None:
    (data / "mnist").mkdir(parents=True)
    (data / "cifar-10-batches-bin").mkdir()
    for name in CONTENT:
        (data / "mnist" / name).write_bytes(b"")
    (data / "cifar-10-batches-bin/data_batch_1.bin").write_bytes(b"")
    code, output = invoke("list")
    rows = {line.split()[0]: line for line in output.splitlines() if line.split()[:1] and line.split()[0] in PUBLISHED}
    assert code == 0 and rows.keys() == PUBLISHED.keys() and str(data) in output
    assert "here" in rows["mnist"] and "here" in rows["cifar10_batch1"] and "included in depthrate" in rows["digits"]
    assert "incomplete" in rows["cifar10"] and "missing" in rows["imdb"]


def test_fetch_gets_what_is_missing_once(data: Path, publisher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, publisher)
    code, output = invoke("fetch", "mnist")
    assert code == 0 and output.count("got ") == 2
    assert {path.name: path.read_bytes() for path in (data / "mnist").iterdir()} == CONTENT
    code, output = invoke("fetch", "mnist")
    assert code == 0 and "got " not in output


def test_a_wrong_checksum_keeps_nothing(data: Path, publisher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, publisher, {"train-labels-idx1-ubyte.gz": "0" * 64})
    code, output = invoke("fetch", "mnist")
    assert code == 1 and [path.name for path in (data / "mnist").iterdir()] == ["train-images-idx3-ubyte.gz"]
    for part in ("train-labels-idx1-ubyte.gz", "0" * 64, f"save it as {data}/mnist/train-labels-idx1-ubyte.gz"):
        assert part in output.replace("\n", "")


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar100", "stl10"])
def test_unpublished_file_is_named(data: Path, publisher: str, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(PUBLISHED, name, dataclasses.replace(PUBLISHED[name], files_url=publisher))
    url, sha256, path = downloads_of(name)[0]
    (data.parent / "publisher" / url.rpartition("/")[2]).write_bytes(b"another file")
    code, output = invoke("fetch", name)
    assert code == 1 and not [path for path in data.rglob("*") if path.is_file()]
    assert sha256 in output and f"save it as {data}/{path}" in output.replace("\n", "")


def test_offline_fetch_names_file_and_place(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pooch")
    publish(monkeypatch, "http://127.0.0.1:9")  # the discard port: nobody listens
    code, output = invoke("fetch", "mnist")
    assert code == 1 and "cannot download http://127.0.0.1:9/train-images-idx3-ubyte.gz" in output
    assert f"save it as {data}/mnist/train-images-idx3-ubyte.gz" in output.replace("\n", "")


def test_unknown_data_set(data: Path) -> None:
    code, output = invoke("fetch", "mnits")
    assert code == 2 and "did you mean 'mnist'" in output and "imdb" in output


def test_every_file_based_set_is_fetchable() -> None:
    downloads = [download for name, info in PUBLISHED.items() if info.layouts for download in downloads_of(name)]
    assert all(len(sha256) == 64 and url.startswith("https://") for url, sha256, _ in downloads)
    files = {(url, path) for url, _, path in downloads}
    assert ("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", "aclImdb_v1.tar.gz") in files
    ossci = "https://ossci-datasets.s3.amazonaws.com/mnist/train-labels-idx1-ubyte.gz"
    assert (ossci, "mnist/train-labels-idx1-ubyte.gz") in {(url, path) for url, _, path in downloads}


IDX_IMAGES, IDX_LABELS = "mnist/train-images-idx3-ubyte", "mnist/train-labels-idx1-ubyte"


def put_mnist(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole MNIST of twenty images."""
    monkeypatch.setitem(PUBLISHED, "mnist", dataclasses.replace(PUBLISHED["mnist"], num_samples=20, smallest_class=2))
    (data / "mnist").mkdir(parents=True)
    (data / IDX_IMAGES).write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">3I", 20, 28, 28) + bytes(20 * 784))
    (data / IDX_LABELS).write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 20) + bytes(range(10)) * 2)


def run_on_mnist(verb: str, store: Path) -> tuple[int, str]:
    settings = ["dataset=mnist", "samples_per_class=2", "steps=2", "depth=2", "seeds=1"]
    return here.invoke(verb, "quickstart", "--store", store, *(part for s in settings for part in ("--set", s)))


def cut(data: Path) -> None:
    (data / IDX_IMAGES).write_bytes((data / IDX_IMAGES).read_bytes()[:-1])


def cut_and_compressed(data: Path) -> None:
    (data / f"{IDX_LABELS}.gz").write_bytes(gzip.compress((data / IDX_LABELS).read_bytes())[:-3])
    (data / IDX_LABELS).unlink()


def emptied(data: Path) -> None:
    (data / IDX_IMAGES).unlink()
    (data / IDX_LABELS).unlink()


def folder_in_its_place(data: Path) -> None:
    (data / IDX_IMAGES).unlink()
    (data / IDX_IMAGES).mkdir()


def file_in_place_of_the_folder(data: Path) -> None:
    emptied(data)
    (data / "mnist").rmdir()
    (data / "mnist").write_text("")


def forbidden(data: Path) -> None:
    (data / IDX_IMAGES).chmod(0)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut, f"{IDX_IMAGES} is corrupt: it has .* bytes, expected 15696 .* Download it again"),
        (cut_and_compressed, rf"{IDX_LABELS}\.gz is corrupt .* Download it again"),
        (emptied, "data set 'mnist' not found in .* Run depthrate data fetch mnist"),
        (folder_in_its_place, f"{IDX_IMAGES} is a folder, expected a file"),
        (file_in_place_of_the_folder, "mnist cannot be read .* set DEPTHRATE_DATA to another folder"),
        pytest.param(
            forbidden,
            f"{IDX_IMAGES} cannot be read .*Permission.* Check that",
            marks=pytest.mark.skipif(is_root(), reason="permissions do not bind the superuser"),
        ),
    ],
)
def test_damage_is_found_before_anything_starts(
    harm: Callable[[Path], None], message: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_mnist(data, monkeypatch)
    assert run_on_mnist("plan", tmp_path / "store")[0] == 0
    harm(data)
    code, output = run_on_mnist("run", tmp_path / "store")
    assert code == 2 and re.search(message, output), output
    assert not (tmp_path / "store").exists()


def test_unreachable_server_is_not_empty(tmp_path: Path, publisher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setenv("DEPTHRATE_DATA", "http://127.0.0.1:9/data")
    code, output = run_on_mnist("plan", tmp_path / "store")
    assert code == 2 and re.search("127.0.0.1:9/data/mnist cannot be read .*Connect", output), output
    monkeypatch.setenv("DEPTHRATE_DATA", publisher)
    code, output = run_on_mnist("plan", tmp_path / "store")
    assert code == 2 and "data set 'mnist' not found in" in output
