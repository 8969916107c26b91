"""NVRTC is loaded from torch's installation alone, and only where no other user can change it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from depthrate.tasks.native.cuda import NvrtcMissingError, find_nvrtc

FAKE = """
#include <cstdio>
extern "C" int nvrtcVersion(int *major, int *minor) { *major = *minor = 0; return 0; }
__attribute__((constructor)) static void mark() { std::fclose(std::fopen("loaded", "w")); }
"""
ASK = "import depthrate.tasks.native.cuda as cuda\ntry: cuda.nvrtc_version()\nexcept cuda.NvrtcMissingError: print('missing')"


def test_no_planted_library_is_loaded(tmp_path: Path) -> None:
    """Not from the working folder, nor from folders of the variables that linkers and Python read."""
    (tmp_path / "fake.cpp").write_text(FAKE)
    subprocess.run(["g++", "-shared", "-fPIC", "fake.cpp", "-o", "libnvrtc.so"], cwd=tmp_path, check=True)
    folders = (".", "linked", "nvidia/cu13/lib", "added/nvidia/cu13/lib")
    for folder in (tmp_path / name for name in folders):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
            (folder / name).write_bytes((tmp_path / "libnvrtc.so").read_bytes())
    paths = os.pathsep.join(["added", *filter(None, sys.path)])
    environment = os.environ | {"LD_LIBRARY_PATH": ":.:linked", "PYTHONPATH": paths}
    subprocess.run([sys.executable, "-c", ASK], cwd=tmp_path, env=environment, check=True)
    assert not (tmp_path / "loaded").exists()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of an installation of torch with NVRTC's wheel, as files without content."""
    names = ("libnvrtc-builtins.alt.so.13.0", "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13", "libnvrtc.so.13")
    (tmp_path / "torch").mkdir()
    (tmp_path / "nvidia/cu13/lib").mkdir(parents=True)
    for path in (*map((tmp_path / "nvidia/cu13/lib").joinpath, names), tmp_path / "torch/__init__.py"):
        path.touch(0o644)
    return tmp_path / "torch"


def test_it_is_found_in_the_wheel_next_to_torch(package: Path) -> None:
    found = find_nvrtc(package)
    assert [path.name for path in found] == ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]
    found[0].unlink()
    with pytest.raises(NvrtcMissingError, match="missing next to .*pip install nvidia-cuda-nvrtc"):
        find_nvrtc(package)  # NVRTC would search its builtins by name


@pytest.mark.parametrize("name", ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0", ".", ".."])
@pytest.mark.parametrize("change", ["mode", "owner"])
def test_it_is_refused_where_others_can_change_it(name: str, change: str, package: Path) -> None:
    path = package.parent / "nvidia/cu13/lib" / name
    if change == "mode":
        path.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(path, 65533, 65533)
    else:
        pytest.skip("files of other users are made by root")
    with pytest.raises(NvrtcMissingError, match="NVRTC is not loaded: .*(can be written by everybody|another user)"):
        find_nvrtc(package)
