"""Devices are counted from what the driver says, without torch."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator import machine

LISTED = """GPU 0: NVIDIA GeForce RTX 3080 Laptop GPU (UUID: GPU-5d1a)
GPU 1: NVIDIA H200 (UUID: GPU-77ab)
"""


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(machine.importlib.metadata, "version", lambda name: "2.13.0+cu130")
    monkeypatch.setattr(
        machine.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=LISTED, stderr="")
    )


def test_each_listed_gpu_counts_once(two_gpus: None) -> None:
    assert machine.choose_machine("auto", None) == machine.Machine("cuda", 2, ("0", "1"))
    assert machine.choose_machine("cpu", 3) == machine.Machine("cpu", 3)


def test_the_visible_ones_are_meant(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " 3, 5")
    assert machine.gpu_names() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.gpu_names() == []


def test_a_cpu_build_of_torch_uses_no_gpu(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.importlib.metadata, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert machine.choose_machine("auto", 1).device == "cpu"
    with pytest.raises(machine.MachineError, match="no GPU that torch can use"):
        machine.choose_machine("cuda", None)
