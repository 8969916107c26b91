"""Run all scenarios on a real SLURM several times in a row, while other processes keep the machine busy.

    python -m tests.support.slurm_rounds --rounds 3 --busy 2

Prints a line a round and what failed, and ends with code 1 if anything did.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("tests/orchestrator/executors", "tests/slurm")


def run_round(number: int, words: list[str], folder: Path) -> list[str]:
    """Run the tests once and return those that failed; what they printed is kept in `folder`."""
    log = folder / f"round_{number}.log"
    command = [sys.executable, "-m", "pytest", "-q", "--all", "-m", "slurm", "-p", "no:cacheprovider", "--durations=0"]
    began = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run([*command, *PLACES, *words], cwd=ROOT, stdout=output, stderr=output, check=False)
    text = log.read_text(errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    last = (text.strip().splitlines() or ["nothing was printed"])[-1]
    load = os.getloadavg()[1]
    print(f"round {number}: {last}; {time.monotonic() - began:.0f} s, load {load:.1f}; {log}", flush=True)
    for name in failed:
        print(f"  {name}", flush=True)
    return failed or ([] if done.returncode == 0 else [f"pytest ended with code {done.returncode}"])


def main() -> int:
    """Run the rounds and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, help="processes that only compute, at the lowest priority")
    parser.add_argument("--logs", type=Path, default=Path("slurm_rounds"))
    known, words = parser.parse_known_args()
    known.logs.mkdir(parents=True, exist_ok=True)
    burn = ["nice", "-n", "19", sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(burn) for _ in range(known.busy)]
    try:
        failed = [name for number in range(1, known.rounds + 1) for name in run_round(number, words, known.logs)]
    finally:
        for process in others:
            process.kill()
            process.wait()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
