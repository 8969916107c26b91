"""`depthrate plan` accepts the example cluster files on a cluster with the resources that they name."""

import stat
from pathlib import Path

import pytest

from depthrate.slurm.profile import load_profile
from tests.support.here import answer

EXAMPLES = sorted((Path(__file__).parents[2] / "slurm" / "examples").glob("*.toml"))
NODES = {
    "cpu,cpu-long": "CPUTot=64 RealMemory=256000 Gres=(null) AvailableFeatures=(null)",
    "gpu": "CPUTot=64 RealMemory=512000 Gres=gpu:a100:4,gpu:h100:4 AvailableFeatures=nvlink",
}
CLUSTER = {
    "config": "ClusterName = big\nMaxArraySize = 1001\nMaxJobCount = 10000\n",
    "node": "\n".join(
        f"NodeName=n{i} {resources} Partitions={partition}" for i, (partition, resources) in enumerate(NODES.items())
    ),
    "partition": "\n".join(
        f"PartitionName={name} Default=NO State=UP MaxTime=2-00:00:00" for name in ("cpu", "cpu-long", "gpu")
    ),
}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install programs that answer like a large cluster."""
    pytest.importorskip("submitit")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in CLUSTER.items():
        (folder / f"{name}.txt").write_text(text)
    scripts = {
        "scontrol": f'for word; do :; done; cat "{folder}/$word.txt"',
        **dict.fromkeys(("sbatch", "srun", "squeue", "sacct", "sacctmgr"), "true"),
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))


def test_there_are_three() -> None:
    assert [path.stem for path in EXAMPLES] == ["containers", "cpu", "gpus"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_plan_accepts_it(cluster: None, path: Path, tiny_sweep: Path, tmp_path: Path) -> None:
    (keys := tmp_path / "s3").touch()
    (here := tmp_path / path.name).write_text(path.read_text().replace("/shared/theory/keys/s3", str(keys)))
    plan = answer("plan", tiny_sweep, "--store", tmp_path / "store", "--executor", "slurm", "--cluster", here)
    profile = load_profile(str(path))
    assert plan["jobs"] >= 1 and plan["workers"] == (profile.array_parallelism or 0) * profile.slots
    script = plan["batch_script"]
    assert f"#SBATCH --partition={profile.partition}" in script
    for line in profile.setup:
        assert line in script
    if profile.container:
        assert f"{profile.container} python3 -u -m submitit.core._submit" in script
        assert "apptainer exec --nv --bind=/shared/theory" in script and '--bind="$TMPDIR"' in script
        assert f"export AWS_SHARED_CREDENTIALS_FILE={keys}" in script
