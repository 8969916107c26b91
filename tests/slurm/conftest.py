"""A real SLURM for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from slurm_lab import Lab, missing_programs


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster of four nodes."""
    pytest.importorskip("submitit", reason="needs pip install 'depthrate[slurm]'")
    if missing := missing_programs():
        reason = "apt-get install slurm-wlm slurmdbd mariadb-server-core munge"
        pytest.skip(f"needs a real SLURM: {', '.join(missing)} not found ({reason})")
    lab = Lab(tmp_path_factory.mktemp("slurm"))
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()
