"""An older checkout of depthrate and this one beside each other on one store: is anything lost?

    python -m tests.support.old_and_new --old ../checkout-of-before --sequences 20

A sequence is a few commands (run, query, compact, verify, verify --repair, upgrade), each by the older or by this version, some
of them at the same time. After each step every trial that was committed before is still there, read by both; at the end both
verify the store and find nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[2]
TASK = """
import depthrate

@depthrate.task(version=1)
def law(*, depth: int, seed: int = 0):
    return {"metrics": [{"layer": depth, "nc1": 1.0 / depth, "bend": 0.5}], "curves": [{"step": 1, "loss": 0.5}]}
"""
VERBS = ("run", "compact", "verify", "repair", "query", "upgrade")
QUERY = "select trial_id, nc1 from results order by trial_id"


def command(checkout: Path, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command of one of the two versions."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "DEPTHRATE_STORE": str(folder / "store")}
    call = [sys.executable, "-m", "depthrate", *words]
    return subprocess.Popen(
        call, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def words_of(verb: str, depths: list[int], folder: Path, rng: random.Random) -> list[str]:
    """Return what a verb is called with; a run takes a few trials more."""
    if verb == "run":
        name = f"s{rng.randrange(3)}"
        chosen = rng.sample(depths, 3)
        sweep = folder / f"{name}.yaml"
        sweep.write_text(f"name: {name}\ntask: ./my_task.py:law\ngrid: {{depth: {sorted(chosen)}}}\n")
        return ["run", str(sweep), "--workers", "1"]
    if verb == "query":
        return ["query", QUERY, "--json"]
    return {"compact": ["compact", "--grace", "0"], "repair": ["verify", "--repair"]}.get(verb, [verb])


def trials_of(checkout: Path, folder: Path) -> dict[str, float]:
    """Return trial -> nc1 as one of the versions reads them."""
    process = command(checkout, folder, "query", QUERY, "--json")
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    rows = json.loads(said)
    assert len({row["trial_id"] for row in rows}) == len(rows), "doubled"
    return {row["trial_id"]: row["nc1"] for row in rows}


def sequence(seed: int, old: Path) -> dict[str, int]:
    """Play one sequence; return how often each version did what."""
    rng, counts = random.Random(seed), dict[str, int]()
    versions = {"old": old, "new": HERE}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "my_task.py").write_text(TASK)
        before: dict[str, float] = {}
        for step in range(4):
            together = [("run", rng.choice(["old", "new"]))] if step == 0 else []
            while len(together) < (1 if step == 0 else 2):
                together.append((rng.choice(VERBS), rng.choice(["old", "new"])))
            started = []
            for verb, version in together:
                verb = "verify" if verb == "upgrade" and version == "old" else verb
                counts[f"{version} {verb}"] = counts.get(f"{version} {verb}", 0) + 1
                words = words_of(verb, list(range(2, 12)), folder, rng)
                started.append((version, words, command(versions[version], folder, *words)))
            for version, words, process in started:
                said, errors = process.communicate()
                assert process.returncode == 0, (seed, step, version, words, said, errors)
            now = trials_of(rng.choice([old, HERE]), folder)
            assert before.items() <= now.items(), (seed, step, together, "lost", before.keys() - now.keys())
            before = now
        assert trials_of(old, folder) == trials_of(HERE, folder) == before
        for checkout in (old, HERE):
            process = command(checkout, folder, "verify")
            said, errors = process.communicate()
            assert process.returncode == 0 and "all as committed" in said, (seed, said, errors)
    return counts


def main() -> None:
    """Play sequences and print what was done in all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    total: dict[str, int] = {}
    for seed in range(given.first, given.first + given.sequences):
        for what, count in sequence(seed, given.old.resolve()).items():
            total[what] = total.get(what, 0) + count
        print(f"sequence {seed}: nothing lost", flush=True)
    print(json.dumps(total, sort_keys=True))


if __name__ == "__main__":
    main()
