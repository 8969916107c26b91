"""Networks of equal blocks share kernels at any depth, and code without an effect on steps rebuilds nothing."""

import ctypes
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.native import table
from depthrate.tasks.native.build import load_library
from depthrate.tasks.native.compiler import EngineError
from depthrate.tasks.native.table import Base, Kernel, Piece, Statement, StepTable, TableLibrary
from depthrate.tasks.networks import operations
from depthrate.tasks.training.engines import generated
from tests.support.native_trials import network_of

DATA = DataShape(num_samples=150, sample_shape=(12,), num_classes=5)


def table_of(depth, **shape):
    return generated._table(network_of(16, depth=depth, **shape), torch.float32, "ce", 64, DATA, 0.0)


@pytest.mark.parametrize("shape", [{}, {"linear_layers": 2, "pre_norm": True}], ids=["rn1", "rn2 pre-LN"])
def test_depths_share_kernels(shape):
    tables = {depth: table_of(depth, **shape) for depth in (1, 2, 8, 11)}
    sources = {depth: table.sources() for depth, table in tables.items()}
    assert sources[8] == sources[11] and tables[8] != tables[11]
    assert len(sources[2].keys() - sources[8].keys()) <= 1 and len(sources[1].keys() & sources[2].keys()) >= 15


def test_a_table_is_read_as_written():
    written = table_of(2)
    read = StepTable.from_text(written.to_text())
    assert read == written and read.sources() == written.sources()
    assert {type(statement) for statement in read.tile} == {Statement} and {type(piece) for piece in read.pieces} == {
        Piece
    }
    constant = StepTable([], [], [], [], [], 4, 64, 64, bytes(range(256)))
    assert StepTable.from_text(constant.to_text()) == constant


def test_constants_and_zeros_are_aligned():
    for size in (1, 64, 1000):
        content = bytes(number % 251 for number in range(size))
        copy = table._aligned(content)
        assert copy.raw == content and ctypes.addressof(copy) % table.ALIGNMENT == 0


def test_a_name_depends_on_the_text():
    kernels = [
        Kernel(("Number",), "  p0[0] = 1;"),
        Kernel(("Number",), "  p0[0] = 2;"),
        Kernel(("int64_t",), "  p0[0] = 1;"),
    ]
    assert len({kernel.symbol for kernel in kernels}) == 3
    assert kernels[0].symbol == Kernel(["Number"], "  p0[0] = 1;").symbol


@pytest.mark.slow
def test_other_structures_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(table.TableFields, "version", table.TableFields.version + 1)
    empty = StepTable([], [], [], [], [], 4, 64, 64, b"")
    bind = partial(TableLibrary, table=empty, kernels={})
    with pytest.raises(EngineError, match=r"generated.cpp.*struct table has \(bytes, version\) .*TableFields"):
        load_library("generated", {"NUMBER": "float"}, lambda: False, bind=bind)


def test_bases_are_those_of_the_source():
    text = (Path(table.__file__).parent / "generated.cpp").read_text()
    names = text.partition("enum Base : int64_t {")[2].partition("}")[0].split(",")
    assert [name.strip() for name in names] == [*(base.name for base in Base), "NUM_BASES"]


@pytest.fixture
def code_of(monkeypatch, tmp_path):
    """Return a function that changes the code of the networks in a copy, and returns what tables depend on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "networks"
    shutil.copytree(Path(operations.__file__).parent, folder)
    monkeypatch.setattr(operations, "__file__", str(folder / "operations.py"))

    def change(old, new):
        path = folder / "residual.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        generated._code.cache_clear()
        return generated._code()

    yield change
    monkeypatch.undo()
    generated._code.cache_clear()


def test_a_comment_rebuilds_nothing(code_of):
    first = code_of("", "")
    assert code_of("\nfrom ", "\n# a comment\n\nfrom ") == first
    assert code_of("    def layers(self", "    # another one\n    def layers(self") == first
    assert code_of('"""', '"""Another docstring. ') == first
    assert code_of("def layers(self", "def other_layers(self") != first
