"""GPUs are counted with the driver's tools, without torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from depthrate.orchestrator.executors import local, machine
from depthrate.orchestrator.executors.local import LocalExecutor

LISTED = """GPU 0: NVIDIA GeForce RTX 3080 Laptop GPU (UUID: GPU-5d1a)
GPU 1: NVIDIA H200 (UUID: GPU-77ab)
"""
MEBIBYTES = "GPU-5d1a, 10000\nGPU-77ab, 143771\n"
WITH_MIG = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d1a)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-ba1e)
GPU 1: NVIDIA H200 (UUID: GPU-77ab)
"""


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


def test_workers_share_memory_or_control_group(tmp_path: Path) -> None:
    alone, four = (machine.choose_machine("cpu", workers).memory_bytes for workers in (1, 4))
    assert alone is not None and four == pytest.approx(alone / 4)
    limit = tmp_path / "memory.max"
    for text, least in (("1000000\n", 1e6), ("max\n", None)):
        limit.write_text(text)
        result = machine.main_memory_bytes(str(limit))
        assert result == least or (least is None and result is not None and result > 1e8)


def test_the_visible_ones_are_meant(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 3, 5")
    assert machine.choose_machine("auto", None).gpus == ("3", "5")
    assert machine.choose_machine("cuda", None).memory_bytes is None  # not listed
    for name in ("1", "GPU-77ab"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", name)
        assert machine.visible_gpus() == {name: 143_771 * 2**20}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.visible_gpus() == {}


def test_mig_instances_by_uuid(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, stdout=WITH_MIG if "-L" in command else MEBIBYTES, stderr="")

    monkeypatch.setattr(machine.subprocess, "run", run)
    assert machine.visible_gpus() == {"MIG-c6d4": 20e9, "MIG-ba1e": 5e9, "1": 143_771 * 2**20}
    assert machine.choose_machine("auto", None).gpus == ("MIG-c6d4", "MIG-ba1e", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c6d4")
    chosen = machine.choose_machine("auto", 2)
    assert chosen.gpus == ("MIG-c6d4",) and chosen.memory_bytes == pytest.approx(machine.USABLE_SHARE * 10e9)


@pytest.mark.parametrize("has_mps", [True, False])
def test_mps_shares_a_gpu(has_mps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_mps:
        program, log = tmp_path / "nvidia-cuda-mps-control", tmp_path / "log"
        program.write_text(f'#!/bin/bash\nif [ "$1" = -d ]; then echo start; else read word; echo $word; fi >> {log}\n')
        program.chmod(0o755)
    executor = LocalExecutor(4, ("3", "5"), device="cuda")
    how = "through NVIDIA's MPS" if has_mps else "in turn, without NVIDIA's MPS"
    assert executor.summary() == f"4 worker processes on cuda, 2 per GPU {how}"
    assert LocalExecutor(2, ("3", "5"), device="cuda").summary() == "2 worker processes on cuda"
    executor.start(None)
    assert ("CUDA_MPS_PIPE_DIRECTORY" in os.environ) is has_mps
    visible: list[str] = []

    def start(*_: object, variables: dict[str, str], **__: object) -> MagicMock:
        visible.append(variables["CUDA_VISIBLE_DEVICES"])
        return MagicMock()

    monkeypatch.setattr(local, "start_python", start)
    monkeypatch.setattr(local.threading, "Thread", MagicMock())
    for slot in range(4):
        executor._start(slot)
    executor.close()
    assert visible == (["0", "1", "0", "1"] if has_mps else ["3", "5", "3", "5"])
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert not has_mps or log.read_text().split() == ["start", "quit"]


def test_a_cpu_build_of_torch_uses_no_gpu(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert machine.choose_machine("auto", 1).device == "cpu"
    with pytest.raises(machine.MachineError, match="no GPU that torch can use"):
        machine.choose_machine("cuda", None)
