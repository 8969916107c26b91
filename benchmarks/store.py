"""The store at scale: writing it, planning against it, asking it, compacting it; beside S3 and what users do today.

    python -m benchmarks.store --trials 1000 10000 100000 --place /some/folder
    python -m benchmarks.store --trials 1000 10000 --place /some/folder --s3         # needs moto[server] and s3fs
    python -m benchmarks.store --trials 1000 10000 --place /some/folder --rivals     # what is missing is skipped
    pip install tensorboard mlflow-skinny sqlalchemy alembic                         # the rivals besides pandas

The store is synthetic (store_synthetic.py): invented numbers, but real trials, packs of up to 16, tables of 35 layers
and the real writer, on two processes. A store that is there already is used again.

Every run is a fresh process. "command" is a whole `depthrate ...`, start-up included; all else is timed inside the
process (store_measures.py), where "again" means for the second time in it. The operating system's page cache is warm
unless the measure says "cold": then the store's files were dropped from it before. A "compacted" store still holds
what the compaction replaced, for readers that are at it; deleted an hour later, they leave it "settled".

Rows give the median of the runs with min and max, the growth over the next smaller store, and ratios of medians: to
the uncompacted store's, and on a rival's row ours to theirs.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.store_processes import (
    ROOT,
    drop_from_page_cache,
    machine,
    run_depthrate,
    run_module,
    run_process,
)
from benchmarks.store_rows import RIVALS, Row, print_table, relate

GROUP_BY = "select weight_decay, avg(nc1) as nc1 from results group by 1 order by 1"
IN_PROCESS = ("diff", "driver", "query:group by, results", "query:group by, metrics", "query:one trial's rows")
S3_MOST_TRIALS = 10_000
"""moto keeps all objects in one Python process, so larger stores would measure moto."""
QUESTIONS = {
    "group_by": "rivals: group by",
    "one_trial": "rivals: one trial's rows",
    "done": "rivals: which trials are done",
}


@dataclass(frozen=True)
class Place:
    """Where stores are: a folder, or a server."""

    name: str
    root: str
    environment: Mapping[str, str]
    server: Any = None
    """Of tests/support/s3_server.py; null for a folder."""

    def store(self, trials: int, suffix: str = "") -> str:
        """Return the URL of the store of this size."""
        return f"{self.root}/{_label(trials)}{suffix}"

    def num_requests(self) -> int:
        """Return how many requests the server has had; 0 for a folder."""
        return 0 if self.server is None else int(sum(self.server.counts().values()))


@dataclass
class Bench:
    """Takes the measures and keeps the rows."""

    folder: Path
    """For sweep files and rivals."""
    runs: int
    budget_s: float
    """A measure is not run again once it took this long in all."""
    rows: list[Row] = field(default_factory=list)

    def add(self, trials: int, place: str, state: str, measure: str, unit: str, values: Sequence[float]) -> None:
        """Keep a row and say so on standard error."""
        row = Row(trials, place, state, measure, unit, list(values))
        self.rows.append(row)
        print(f"{trials:>7} {place:6} {state:11} {measure:32} {row.median:10.4g} {unit}", file=sys.stderr, flush=True)

    def repeat(self, run: Callable[[], None]) -> None:
        """Run at least once, at most `runs` times, while the budget lasts."""
        started = time.monotonic()
        for _ in range(self.runs):
            run()
            if time.monotonic() - started > self.budget_s:
                return

    def sweep_file(self, trials: int) -> Path:
        """Return the sweep's file, written if it is not there."""
        path = self.folder / f"{_label(trials)}.yaml"
        if not path.is_file():
            # a process of its own: what this one imports, every process it starts is born with
            code = (
                "import json, sys; from benchmarks.store_synthetic import synthetic_sweep; "
                "print(json.dumps(synthetic_sweep(int(sys.argv[1])).spec(), indent=1))"
            )
            path.write_text(run_process([sys.executable, "-c", code, str(trials)]).output)
        return path

    def write(self, place: Place, trials: int) -> None:
        """Write the store unless it is there."""
        store = place.store(trials)
        if place.server is None and Path(store).is_dir():
            return
        aside = store if place.server else f"{store}.part"  # an interrupted one is not taken for whole
        if place.server is None:
            shutil.rmtree(aside, ignore_errors=True)
        ended = run_module("store_synthetic", ["--store", aside, "--trials", str(trials)], place.environment)
        if place.server is None:
            os.replace(aside, store)
        took = json.loads(ended.output)
        self.add(trials, place.name, "uncompacted", "write", "trials/s", [took["trials_per_s"]])

    def commands(self, place: Place, trials: int, state: str, store: str) -> None:
        """Measure whole commands: wall time, peak memory, and on a server the requests."""
        commands = {
            "command plan": ["plan", str(self.sweep_file(trials))],
            "command status --json": ["status", "--json"],
            "command query, group by": ["query", GROUP_BY],
        }
        for name, arguments in commands.items():
            ended, requests = [], []

            def run(arguments: list[str] = arguments) -> None:
                before = place.num_requests()
                ended.append(run_depthrate([*arguments, "--store", store], place.environment))
                requests.append(place.num_requests() - before)

            self.repeat(run)
            self.add(trials, place.name, state, name, "s", [end.seconds for end in ended])
            self.add(trials, place.name, state, f"{name}, memory", "MB", [end.peak_mb for end in ended])
            if place.server:
                self.add(trials, place.name, state, f"{name}, requests", "", requests)

    def in_process(self, place: Place, trials: int, state: str, store: str) -> None:
        """Measure inside fresh processes."""
        for measure in IN_PROCESS:
            answers: list[dict[str, Any]] = []
            self.repeat(lambda: answers.append(self._answer(measure, place, trials, store)))
            for name in answers[0]["seconds"]:
                seconds = [answer["seconds"][name] for answer in answers]
                shared = name in ("import", "open") and measure != IN_PROCESS[2]  # every question opens the store
                if not shared:
                    self.add(trials, place.name, state, name, "s", seconds)
            memory = f"{measure.removeprefix('query:')}, memory"
            self.add(trials, place.name, state, memory, "MB", [answer["peak_mb"] for answer in answers])

    def cold(self, place: Place, trials: int, state: str, store: str) -> None:
        """Measure with the store's files dropped from the page cache (names and sizes stay in memory)."""
        for measure, name in (("diff", "diff"), (IN_PROCESS[2], "group by, results")):
            seconds: list[float] = []

            def run(measure: str = measure, name: str = name) -> None:
                drop_from_page_cache(Path(store))
                answer = self._answer(measure, place, trials, store)["seconds"]
                seconds.append(answer[name] + answer.get("open", 0.0))

            self.repeat(run)
            opened = "open and " if measure.startswith("query:") else ""
            self.add(trials, place.name, state, f"{opened}{name}, cold", "s", seconds)

    def compact(self, place: Place, trials: int, store: str) -> bool:
        """Compact a store and measure it; false where this depthrate cannot."""
        try:
            ended = run_depthrate(["compact", "--store", store], place.environment)
        except subprocess.CalledProcessError as error:
            print(f"no figures for compacted stores: depthrate compact: {error.stderr.strip()[-300:]}", file=sys.stderr)
            return False
        self.add(trials, place.name, "compacted", "command compact", "s", [ended.seconds])
        self.add(trials, place.name, "compacted", "command compact, memory", "MB", [ended.peak_mb])
        return True

    def settle(self, place: Place, trials: int, store: str) -> None:
        """Bring a compacted store to where the next compaction would an hour later."""
        ended = run_depthrate(["compact", "--retain-hours", "0", "--store", store], place.environment)
        self.add(trials, place.name, "settled", "command compact --grace 0", "s", [ended.seconds])

    def size(self, place: Place, trials: int, state: str, store: str) -> None:
        """Count a folder's files and bytes, what compaction left to be deleted later included."""
        if place.server is None:
            sizes = [path.stat().st_size for path in Path(store).rglob("*") if path.is_file()]
            self.add(trials, place.name, state, "files", "", [len(sizes)])
            self.add(trials, place.name, state, "size", "MB", [sum(sizes) / 1e6])

    def store_at(self, place: Place, trials: int, state: str, store: str) -> None:
        """Take every measure of one store."""
        self.size(place, trials, state, store)
        self.commands(place, trials, state, store)
        self.in_process(place, trials, state, store)
        if place.server is None and hasattr(os, "posix_fadvise"):
            self.cold(place, trials, state, store)

    def compacted_store_at(self, place: Place, trials: int, store: str) -> None:
        """Take every measure of a compacted store, at once and when what was replaced is gone."""
        self.store_at(place, trials, "compacted", store)
        self.settle(place, trials, store)
        self.store_at(place, trials, "settled", store)

    def rivals(self, trials: int, stores: Mapping[str, str]) -> None:
        """Ask our stores (state -> folder) and the rivals the same questions."""
        folders = {state: ("ours", store) for state, store in stores.items()}
        for rival, most in RIVALS.items():
            if trials <= most and self._write_rival(rival, trials):
                folders[rival] = (rival, str(self._rival_folder(rival, trials)))
        for question, name in QUESTIONS.items():
            for state, (rival, folder) in folders.items():
                self._ask(trials, state, rival, folder, question, name)

    def _answer(self, measure: str, place: Place, trials: int, store: str) -> dict[str, Any]:
        arguments = [measure, "--store", store, "--sweep-file", str(self.sweep_file(trials))]
        answer: dict[str, Any] = json.loads(run_module("store_measures", arguments, place.environment).output)
        return answer

    def _rival_folder(self, rival: str, trials: int) -> Path:
        return self.folder / f"{_label(trials)}-{rival}"

    def _write_rival(self, rival: str, trials: int) -> bool:
        """Write a rival's folder unless it is there; false where the rival is not installed."""
        missing = json.loads(run_module("store_rivals", ["missing", "--rival", rival]).output)
        if missing:
            print(f"{rival} is left out: pip install {' '.join(missing)}", file=sys.stderr)
            return False
        folder = self._rival_folder(rival, trials)
        if not folder.is_dir():
            aside = folder.with_suffix(".part")
            shutil.rmtree(aside, ignore_errors=True)
            arguments = ["write", "--rival", rival, "--folder", str(aside), "--trials", str(trials)]
            (seconds,) = json.loads(run_module("store_rivals", arguments).output)
            os.replace(aside, folder)
            self.add(trials, "folder", rival, "write", "trials/s", [trials / seconds])
        return True

    def _ask(self, trials: int, state: str, rival: str, folder: str, question: str, name: str) -> None:
        arguments = [question, "--rival", rival, "--folder", folder, "--trials", str(trials)]
        seconds: list[float] = []
        # the last time of a process has its imports behind it, on every side
        self.repeat(lambda: seconds.append(json.loads(run_module("store_rivals", arguments).output)[-1]))
        self.add(trials, "folder", state, name, "s", seconds)


def main() -> None:
    """Take the measures asked for, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--place", type=Path, required=True, help="a folder; 100,000 trials take 2 GB")
    parser.add_argument("--s3", action="store_true", help=f"measure on S3 instead, up to {S3_MOST_TRIALS:,} trials")
    parser.add_argument("--rivals", action="store_true", help="compare with CSV, TensorBoard and MLflow instead")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--budget-s", type=float, default=60.0, help="a measure is not repeated after this time")
    parser.add_argument("--output", type=Path, help="write all rows there as JSON")
    arguments = parser.parse_args()
    arguments.place.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.place.resolve(), arguments.runs, arguments.budget_s)
    sizes = sorted(arguments.trials)
    if arguments.s3:
        sizes = [trials for trials in sizes if trials <= S3_MOST_TRIALS]
        sys.path.insert(0, str(ROOT))  # its server counts requests
        with importlib.import_module("tests.support.s3_server").s3_server() as server:
            _measure_s3(bench, Place("s3", server.new_url(), server.environment, server), sizes)
    elif arguments.rivals:
        _measure_rivals(bench, Place("folder", str(bench.folder), {}), sizes)
    else:
        _measure_folder(bench, Place("folder", str(bench.folder), {}), sizes)
    relate(bench.rows)
    print_table(bench.rows)
    if arguments.output:
        content = {"machine": machine(), "rows": [row.to_json() for row in bench.rows]}
        arguments.output.write_text(json.dumps(content, indent=1))


def _measure_folder(bench: Bench, place: Place, sizes: Sequence[int]) -> None:
    can_compact = True
    for trials in sizes:
        bench.write(place, trials)
        bench.store_at(place, trials, "uncompacted", place.store(trials))
        if can_compact:
            with _compacted_copy(bench, place, trials) as copy:
                can_compact = copy is not None
                if copy is not None:
                    bench.compacted_store_at(place, trials, copy)


def _measure_s3(bench: Bench, place: Place, sizes: Sequence[int]) -> None:
    for trials in sizes:
        bench.write(place, trials)
        bench.store_at(place, trials, "uncompacted", place.store(trials))
        if bench.compact(place, trials, place.store(trials)):
            bench.compacted_store_at(place, trials, place.store(trials))


def _measure_rivals(bench: Bench, place: Place, sizes: Sequence[int]) -> None:
    for trials in [trials for trials in sizes if trials <= max(RIVALS.values())]:
        bench.write(place, trials)
        with _compacted_copy(bench, place, trials) as copy:
            stores = {"uncompacted": place.store(trials)}
            if copy is not None:
                bench.settle(place, trials, copy)
                stores["settled"] = copy
            bench.rivals(trials, stores)


@contextmanager
def _compacted_copy(bench: Bench, place: Place, trials: int) -> Iterator[str | None]:
    """Compact a copy for a while, so that the store can be measured again; null where depthrate cannot compact."""
    copy = place.store(trials, "-compacted")
    shutil.rmtree(copy, ignore_errors=True)
    # a store's files are replaced, never changed: links do
    shutil.copytree(place.store(trials), copy, copy_function=os.link)
    try:
        yield copy if bench.compact(place, trials, copy) else None
    finally:
        shutil.rmtree(copy)


def _label(trials: int) -> str:
    return f"{trials // 1000}k" if trials % 1000 == 0 else str(trials)


if __name__ == "__main__":
    main()
