"""Kill drivers and workers with -9 at random moments and run again: what is lost, doubled or different at the end?

    python -m tests.support.kill_rounds --rounds 300 --seed 1            # of a task that walks, most of the time in between
    python -m tests.support.kill_rounds --rounds 30 --sweep train        # of real training, where checkpoints hold tensors
    python -m tests.support.kill_rounds --rounds 100 --sweep short       # of packs so short that many go together

A round is one kill: of the driver, of a worker, or of all at once, on the way to a sweep's end. Whenever a sweep has come to
its end, it is compared with the same sweep run in quiet, and the next begins in an empty store.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from depthrate.orchestrator.analysis.open_results import open_results
from depthrate.storage.files.paths import is_compacted
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import Results

SWEEPS: dict[str, dict[str, Any]] = {
    "walk": {
        "name": "walk",
        "task": f"{Path(__file__).with_name('short_tasks.py')}:walk",
        "grid": {"depth": [2, 3, 4, 5]},
        "seeds": 5,
    },
    "short": {
        "name": "short",
        "task": f"{Path(__file__).with_name('short_tasks.py')}:hop",
        "params": {"step_s": 0.02},
        "grid": {"depth": list(range(2, 602))},
    },
    "train": {
        "name": "train",
        "task": "collapse",
        "params": {"arch": "rn1", "samples_per_class": 5, "steps": 25000, "width": 16, "batch_size": 20},
        "grid": {"depth": [2, 3, 5]},
        "seeds": 3,
    },
}
VICTIMS = ("all", "driver", "worker")
PER_SWEEP = 15
"""Kills at most on the way to one sweep's end."""
LONGEST_S = 600.0
"""A launch that takes longer hangs."""
FAULTS = ("lost", "doubled", "stored_twice", "different", "damaged", "left_over", "hung", "failed")


def start(sweep: Path, store: str) -> subprocess.Popen[str]:
    """Launch a sweep as a user does, with checkpoints all the time."""
    command = [sys.executable, "-m", "depthrate", "run", str(sweep), "--store", store, "--checkpoint-seconds", "0.2"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def children(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kept_bytes(store: str) -> int:
    """Return how much there is of checkpoints and commits: it grows as the sweep gets on."""
    total = 0
    for path in Path(store).rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and "attempts" not in path.parts else 0
        except FileNotFoundError:
            continue  # a checkpoint that has been used
    return total


def raw_rows(store: str) -> int:
    """Return the rows of all commits as they lie there: the view hides a trial that was committed twice."""
    files = (path for path in Path(store).glob("trials/*/*.parquet") if not is_compacted(str(path)))
    return sum(pq.read_metadata(path).num_rows for path in files)


def differences(store: str, quiet: Results) -> Iterator[tuple[str, int]]:
    """Yield what is wrong with a sweep that has come to its end, and how often."""
    results = open_results(store)
    ids = [row[0] for row in results.sql("select trial_id from trials").fetchall()]
    expected = {row[0] for row in quiet.sql("select trial_id from trials").fetchall()}
    yield "lost", len(expected.difference(ids))
    yield "doubled", len(ids) - len(set(ids))
    yield "stored_twice", raw_rows(store) - len(set(ids))
    for table, order in (("metrics", "trial_id, step, layer"), ("curves", "trial_id, step")):
        query = f"select * exclude (attempt_id) from {table} order by {order}"
        yield "different", int(not results.sql(query).to_arrow_table().equals(quiet.sql(query).to_arrow_table()))
    found = verify(Store(store)).findings
    yield "damaged", len(results.problems) + sum(finding.kind != "leftover" for finding in found)
    yield "left_over", len(list(Path(store).glob("checkpoints/*/*.ckpt")))


class KillRounds:
    """Sweeps that are killed on their way, one after another."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.rng, self.counts = folder, random.Random(seed), Counter[str]()
        self.notes: list[str] = []
        self._quiet: dict[str, tuple[Path, Results]] = {}

    def quiet(self, name: str) -> tuple[Path, Results]:
        """Return a sweep's file, and its results without a kill."""
        if name not in self._quiet:
            sweep, store = self.folder / f"{name}.yaml", str(self.folder / f"quiet-{name}")
            sweep.write_text(yaml.safe_dump(SWEEPS[name]))
            launch = start(sweep, store)
            output = launch.communicate(timeout=LONGEST_S)[0]
            assert launch.returncode == 0, output
            self._quiet[name] = sweep, open_results(store)
        return self._quiet[name]

    def sweep(self, name: str, most: int) -> int:
        """Run a sweep to its end with up to `most` kills on the way, compare it, and return how many kills there were."""
        file, quiet = self.quiet(name)
        store = str(self.folder / f"store-{self.counts['sweeps']}")
        self.counts["sweeps"] += 1
        kills, code = 0, None
        while code != 0:
            launch = start(file, store)
            self.counts["launches"] += 1
            kills += self._kill_on_its_way(launch, store, most - kills)
            try:
                output, _ = launch.communicate(timeout=LONGEST_S)
            except subprocess.TimeoutExpired:
                self._note("hung", f"{name}: a launch does not end")
                launch.kill()
                output, _ = launch.communicate()
            code = launch.returncode
            if code not in (0, -signal.SIGKILL):
                self._note("failed", f"{name}: a launch ended with {code}: {output[-600:]}")
                if self.counts["failed"] > 5:
                    raise SystemExit("\n".join(self.notes))
        for what, count in differences(store, quiet):
            if count:
                self._note(what, f"{name}: {count} {what} in sweep {self.counts['sweeps']}", count)
        if not any(self.counts[fault] for fault in FAULTS):
            shutil.rmtree(store)  # what went wrong is kept for a look
        return kills

    def _note(self, what: str, text: str, count: int = 1) -> None:
        self.counts[what] += count
        self.notes.append(text)
        print(text, file=sys.stderr, flush=True)

    def _kill_on_its_way(self, launch: subprocess.Popen[str], store: str, most: int) -> int:
        """Kill at random moments until the driver is dead or done; return how often."""
        kills = 0
        while kills < most:
            if self.rng.random() < 0.7:  # let it get somewhere, then any moment; else also while it starts
                before = kept_bytes(store)
                while launch.poll() is None and kept_bytes(store) == before:
                    time.sleep(0.02)
            time.sleep(self.rng.uniform(0, 2.0))
            victim, workers = self.rng.choice(VICTIMS), children(launch.pid)
            if launch.poll() is not None:
                break
            if victim == "worker" and not workers:
                continue
            chosen = {
                "all": [*workers, launch.pid],
                "driver": [launch.pid],
                "worker": [self.rng.choice(workers or [0])],
            }
            for pid in chosen[victim]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            kills += 1
            self.counts[f"kills of {victim}"] += 1
            if victim != "worker":
                break
        return kills


def run_rounds(folder: Path, rounds: int, seed: int, names: tuple[str, ...], minutes: float = 1e9) -> dict[str, int]:
    """Kill `rounds` times, or for so many minutes, and return the counts, those of faults first."""
    crowd, kills, started = KillRounds(folder, seed), 0, time.monotonic()
    while kills < rounds and time.monotonic() - started < 60 * minutes:
        name = names[crowd.counts["sweeps"] % len(names)]
        kills += crowd.sweep(name, min(PER_SWEEP, rounds - kills))
        taken = time.monotonic() - started
        print(f"{kills} kills in {taken:.0f} s: {dict(crowd.counts)}", file=sys.stderr, flush=True)
    return {fault: crowd.counts[fault] for fault in FAULTS} | {"kills": kills} | dict(crowd.counts)


def main() -> None:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no sweep after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sweep", choices=[*SWEEPS, "both"], default="both")
    given = parser.parse_args()
    names = ("walk", "walk", "walk", "train") if given.sweep == "both" else (given.sweep,)
    os.environ.pop("DEPTHRATE_STORE", None)
    folder = Path(tempfile.mkdtemp(prefix="kill-rounds-"))
    counts = run_rounds(folder, given.rounds, given.seed, names, given.minutes)
    print(json.dumps(counts, indent=1))
    if any(counts[fault] for fault in FAULTS):
        sys.exit(f"faults; the stores are in {folder}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
