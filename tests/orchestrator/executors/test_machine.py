"""GPUs are counted with the driver's tools, without torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from depthrate.orchestrator.executors import machine

LISTED = """GPU 0: NVIDIA GeForce RTX 3080 Laptop GPU (UUID: GPU-5d1a)
GPU 1: NVIDIA H200 (UUID: GPU-77ab)
"""
MEBIBYTES = "10000\n143771\n"


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cu130")

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout=LISTED if "-L" in command else MEBIBYTES, stderr="")

    monkeypatch.setattr(machine.subprocess, "run", run)


def test_each_listed_gpu_counts_once(two_gpus: None) -> None:
    result = machine.choose_machine("auto", None)
    assert (result.device, result.workers, result.gpus) == ("cuda", 2, ("0", "1"))
    on_cpu = machine.choose_machine("cpu", 3)
    assert (on_cpu.device, on_cpu.workers, on_cpu.gpus) == ("cpu", 3, ())


def test_workers_share_the_memory_of_the_smallest_gpu(two_gpus: None) -> None:
    smallest = 10_000 * 2**20
    for workers, sharing in ((1, 1), (2, 1), (3, 2)):
        expected = machine.USABLE_SHARE * smallest / sharing
        assert machine.choose_machine("cuda", workers).memory_bytes == pytest.approx(expected)


def test_workers_share_the_main_memory_or_what_the_control_group_allows(tmp_path: Path) -> None:
    alone, four = (machine.choose_machine("cpu", workers).memory_bytes for workers in (1, 4))
    assert alone is not None and four == pytest.approx(alone / 4)
    limit = tmp_path / "memory.max"
    for text, least in (("1000000\n", 1e6), ("max\n", None)):
        limit.write_text(text)
        result = machine.main_memory_bytes(str(limit))
        assert result == least or (least is None and result is not None and result > 1e8)


def test_the_visible_ones_are_meant(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 3, 5")
    assert machine.gpu_names() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.gpu_names() == []


def test_a_cpu_build_of_torch_uses_no_gpu(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert machine.choose_machine("auto", 1).device == "cpu"
    with pytest.raises(machine.MachineError, match="no GPU that torch can use"):
        machine.choose_machine("cuda", None)
