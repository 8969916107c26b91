"""Whatever stands in a file's place, no command hangs, fills memory or shows a traceback: a sample; each pair is slow."""

import os
from pathlib import Path

import pytest

from depthrate.storage.files import paths
from depthrate.storage.files.paths import FILE_KINDS, is_file_path, kind_of
from tests.support.stand_ins import COSTLY, STAND_INS, Matrix, make_place

NAMES = [kind.name for kind in FILE_KINDS]
BESIDE = {
    "sweep file": ["plan"],
    "task file": ["plan", "plan by name", "tasks"],
    "cluster file": ["plan on a cluster"],
    "begun file": ["init again"],
    "data file": ["data list", "data fetch"],
    "unpacked code": ["plan", "plan by name", "tasks", "trust"],
    "accepted code": ["trust", "plan"],
}
"""What a user keeps beside stores, and the commands that read it."""
_PATHS = [name for name in vars(paths) if name.endswith("_path") and not name.startswith("is_") and "_of_" not in name]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(make_place(tmp_path_factory.mktemp("stand_ins")))


@pytest.mark.slow
def test_every_path_kind_is_tried(matrix: Matrix) -> None:
    made = {
        "table_path": paths.table_path("curves", "s", "a", 1),
        "data_path": paths.data_path("trials/sweep=s/a.parquet", "metrics"),
        "compacted_path": paths.compacted_path("trials", "s", "c"),
        "claim_path": paths.claim_path("l", 1),
        "column_path": paths.column_path("metrics", "c", "double", "x"),
        "batch_path": paths.batch_path("s", "study", 1, "d"),
        "removed_path": paths.removed_path("r", "x/y"),
        "delta_log_path": paths.delta_log_path("curves", 1),
        "decision_path": paths.decision_path("s", 1, "d"),
        "code_file_path": paths.code_file_path("c", "x/y"),
        "library_path": paths.library_path("a.so"),
    }
    for name in _PATHS:
        make = getattr(paths, name)
        path = made.get(name) or make(*"abc"[: make.pattern.count("<")])
        assert kind_of(path) is not None, f"{name} makes {path}, of no kind in KINDS"
    assert {*NAMES, *BESIDE} == matrix.paths.keys() and len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize(
    "kind", [pytest.param(name, marks=[] if index % 5 == 0 else pytest.mark.slow) for index, name in enumerate(NAMES)]
)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux says it")
def test_commands_survive_foreign_file_kinds(matrix: Matrix, kind: str) -> None:
    index, stand_ins = NAMES.index(kind), list(STAND_INS)
    cheap = [name for name in matrix.names if name not in COSTLY]
    sample = {
        stand_ins[(index + 3) % len(stand_ins)]: cheap[index % len(cheap)],
        stand_ins[index % len(stand_ins)]: "verify",
    }
    for stand_in, command in sample.items():
        (outcome,) = matrix.outcomes(kind, stand_in, [command])
        assert not outcome.is_fault, outcome
        if command == "verify" and is_file_path(matrix.paths[kind]):
            assert outcome.what in ("named", "refused"), outcome


@pytest.mark.parametrize(
    "stand_in",
    [name if name == "pipe" else pytest.param(name, marks=pytest.mark.slow) for name in STAND_INS],
)
@pytest.mark.parametrize("kind", BESIDE)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux says it")
def test_state_files_are_read_carefully(matrix: Matrix, kind: str, stand_in: str) -> None:
    for outcome in matrix.outcomes(kind, stand_in, BESIDE[kind]):
        assert not outcome.is_fault, outcome


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stand_in", STAND_INS)
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux says it")
def test_every_command_and_file_kind(matrix: Matrix, stand_in: str) -> None:
    """A sixth of the pairs of a command and a kind once, with one of the stand-ins; with DEPTHRATE_TEST_LONG all pairs with all
    stand-ins. Costly commands meet pipes and 10 GB only."""
    turn = list(STAND_INS).index(stand_in)
    names = [name for name in matrix.names if stand_in in ("pipe", "10 GB") or name not in COSTLY]
    for index, kind in enumerate(NAMES):
        chosen = [name for number, name in enumerate(names) if (number + index) % len(STAND_INS) == turn]
        if index % 6 != turn % 6:
            chosen = []
        for outcome in matrix.outcomes(kind, stand_in, names if os.environ.get("DEPTHRATE_TEST_LONG") else chosen):
            assert not outcome.is_fault, outcome
