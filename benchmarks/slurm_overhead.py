"""200 packs that do nothing, 8 jobs at once, on the SLURM that SLURM_CONF leads to: ours beside plain submitit.

    eval "$(python -m tests.support.slurm_lab start /some/folder)" && python benchmarks/slurm_overhead.py

Prints seconds from launch to the last commit (or the last result) and milliseconds a pack, for: packs whose cost is
unknown, four rounds of jobs; packs bundled by their cost, which the store knows by then, into as many jobs as run at
once; and submitit's own map_array of a function that does nothing, a job each, which commits nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TASK = """\
import depthrate

@depthrate.task(version={version}, fusible=["seed"])
def nothing(*, depth: int, seed: int = 0, context):
    return [{{"metrics": [{{"layer": depth, "nc1": 1.0}}]}} for _ in seed]
"""
CLUSTER = "mem_gb = 0.4\nwalltime_min = 10\narray_parallelism = 8\n"


def launch(folder: Path, first: int, packs: int) -> float:
    """Run `packs` packs of one trial through `depthrate run --executor slurm` and return the seconds."""
    sweep = folder / "sweep.yaml"
    depths = f"{{range: [{first}, {first + packs}]}}"
    sweep.write_text(f"name: nothing\ntask: ./task.py:nothing\ngrid: {{depth: {depths}}}\n")
    command = [sys.executable, "-m", "depthrate", "run", str(sweep), "--store", str(folder / "store")]
    command += ["--executor", "slurm", "--cluster", str(folder / "cluster.toml")]
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONSAFEPATH": "1"})
    return time.monotonic() - started


def do_nothing(index: int) -> int:
    """Return what was given."""
    return index


def plain_submitit(folder: Path, packs: int) -> float:
    """Run a function that does nothing `packs` times through submitit and return the seconds."""
    import submitit

    started = time.monotonic()
    executor = submitit.AutoExecutor(folder=folder / "submitit")
    executor.update_parameters(timeout_min=10, mem_gb=0.4, slurm_array_parallelism=8)
    jobs = []
    for start in range(0, packs, 100):  # the largest array of the tests' cluster
        jobs += executor.map_array(do_nothing, list(range(start, min(packs, start + 100))))
    assert [job.result() for job in jobs] == list(range(packs))
    return time.monotonic() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packs", type=int, default=200)
    packs = parser.parse_args().packs
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        (folder / "task.py").write_text(TASK.format(version=1))
        (folder / "cluster.toml").write_text(CLUSTER)
        rows = [("ours, cost unknown", launch(folder, 1, packs))]
        rows.append(("ours, bundled", launch(folder, packs + 1, packs)))
        rows.append(("plain submitit", plain_submitit(folder, packs)))
    for name, seconds in rows:
        print(f"{name:20} {seconds:6.1f} s  {1000 * seconds / packs:6.0f} ms a pack  {seconds / rows[-1][1]:5.2f}")


if __name__ == "__main__":
    main()
