"""The store at scale: writing it, planning against it, asking it, compacting it; beside S3 and what users do today.

    python benchmarks/store.py --trials 1000 10000 100000 --place /some/folder
    python benchmarks/store.py --trials 1000 10000 --place /some/folder --s3         # needs moto[server] and s3fs
    python benchmarks/store.py --trials 1000 10000 --place /some/folder --rivals     # what is missing is skipped
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

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GROUP_BY = "select weight_decay, avg(nc1) as nc1 from results group by 1 order by 1"
IN_PROCESS = ("diff", "driver", "query:group by, results", "query:group by, metrics", "query:one trial's rows")
S3_MOST_TRIALS = 10_000
"""moto keeps all objects in one Python process, so larger stores would measure moto."""
RIVALS = {"csv": 10_000, "tensorboard": 1_000, "mlflow": 1_000}
"""The most trials at which a rival answers within minutes."""
QUESTIONS = {
    "group_by": "rivals: group by",
    "one_trial": "rivals: one trial's rows",
    "done": "rivals: which trials are done",
}


@dataclass
class Row:
    """One measure of one store."""

    trials: int
    place: str
    state: str
    """uncompacted, compacted, settled, or the rival's name."""
    measure: str
    unit: str
    values: list[float]
    growth: float | None = None
    """Median over that of the next smaller size."""
    ratios: dict[str, float] = field(default_factory=dict)
    """What is divided by what -> the quotient of their medians."""

    @property
    def median(self) -> float:
        """Return the figure to quote."""
        return statistics.median(self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the row for programs."""
        return {**asdict(self), "median": self.median, "min": min(self.values), "max": max(self.values)}


@dataclass(frozen=True)
class Place:
    """Where stores are: a folder, or a server."""

    name: str
    root: str
    environment: Mapping[str, str]
    server: Any = None
    """Of tests/s3_server.py; null for a folder."""

    def store(self, trials: int, suffix: str = "") -> str:
        """Return the URL of the store of this size."""
        return f"{self.root}/{_label(trials)}{suffix}"

    def num_requests(self) -> int:
        """Return how many requests the server has had; 0 for a folder."""
        return 0 if self.server is None else int(sum(self.server.counts().values()))


@dataclass(frozen=True)
class Ended:
    """A process that ran."""

    output: str
    seconds: float
    peak_mb: float


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
            path.write_text(_run([sys.executable, "-c", code, str(trials)]).output)
        return path

    def write(self, place: Place, trials: int) -> None:
        """Write the store unless it is there."""
        store = place.store(trials)
        if place.server is None and Path(store).is_dir():
            return
        aside = store if place.server else f"{store}.part"  # an interrupted one is not taken for whole
        if place.server is None:
            shutil.rmtree(aside, ignore_errors=True)
        ended = _module("store_synthetic", ["--store", aside, "--trials", str(trials)], place.environment)
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
                ended.append(_depthrate([*arguments, "--store", store], place.environment))
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
                _drop_from_page_cache(Path(store))
                answer = self._answer(measure, place, trials, store)["seconds"]
                seconds.append(answer[name] + answer.get("open", 0.0))

            self.repeat(run)
            opened = "open and " if measure.startswith("query:") else ""
            self.add(trials, place.name, state, f"{opened}{name}, cold", "s", seconds)

    def compact(self, place: Place, trials: int, store: str) -> bool:
        """Compact a store and measure it; false where this depthrate cannot."""
        try:
            ended = _depthrate(["compact", "--store", store], place.environment)
        except subprocess.CalledProcessError as error:
            print(f"no figures for compacted stores: depthrate compact: {error.stderr.strip()[-300:]}", file=sys.stderr)
            return False
        self.add(trials, place.name, "compacted", "command compact", "s", [ended.seconds])
        self.add(trials, place.name, "compacted", "command compact, memory", "MB", [ended.peak_mb])
        return True

    def settle(self, place: Place, trials: int, store: str) -> None:
        """Bring a compacted store to where the next compaction would an hour later."""
        ended = _depthrate(["compact", "--grace", "0", "--store", store], place.environment)
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
        answer: dict[str, Any] = json.loads(_module("store_measures", arguments, place.environment).output)
        return answer

    def _rival_folder(self, rival: str, trials: int) -> Path:
        return self.folder / f"{_label(trials)}-{rival}"

    def _write_rival(self, rival: str, trials: int) -> bool:
        """Write a rival's folder unless it is there; false where the rival is not installed."""
        missing = json.loads(_module("store_rivals", ["missing", "--rival", rival]).output)
        if missing:
            print(f"{rival} is left out: pip install {' '.join(missing)}", file=sys.stderr)
            return False
        folder = self._rival_folder(rival, trials)
        if not folder.is_dir():
            aside = folder.with_suffix(".part")
            shutil.rmtree(aside, ignore_errors=True)
            arguments = ["write", "--rival", rival, "--folder", str(aside), "--trials", str(trials)]
            (seconds,) = json.loads(_module("store_rivals", arguments).output)
            os.replace(aside, folder)
            self.add(trials, "folder", rival, "write", "trials/s", [trials / seconds])
        return True

    def _ask(self, trials: int, state: str, rival: str, folder: str, question: str, name: str) -> None:
        arguments = [question, "--rival", rival, "--folder", folder, "--trials", str(trials)]
        seconds: list[float] = []
        # the last time of a process has its imports behind it, on every side
        self.repeat(lambda: seconds.append(json.loads(_module("store_rivals", arguments).output)[-1]))
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
        sys.path.insert(0, str(ROOT / "tests"))  # its server counts requests
        with importlib.import_module("s3_server").s3_server() as server:
            _measure_s3(bench, Place("s3", server.new_url(), server.environment, server), sizes)
    elif arguments.rivals:
        _measure_rivals(bench, Place("folder", str(bench.folder), {}), sizes)
    else:
        _measure_folder(bench, Place("folder", str(bench.folder), {}), sizes)
    relate(bench.rows)
    _print_table(bench.rows)
    if arguments.output:
        content = {"machine": _machine(), "rows": [row.to_json() for row in bench.rows]}
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


def relate(rows: Sequence[Row]) -> None:
    """Fill in growths and ratios."""
    for row in rows:
        smaller = [other for other in rows if _series(other) == _series(row) and other.trials < row.trials]
        if smaller:
            row.growth = _quotient(row.median, max(smaller, key=lambda other: other.trials).median)
        for other in rows:
            if (other.trials, other.place, other.measure) != (row.trials, row.place, row.measure):
                continue
            if row.state in RIVALS and other.state not in RIVALS:
                row.ratios[f"ours {other.state} : {row.state}"] = _quotient(other.median, row.median)
            elif row.state != other.state == "uncompacted":
                row.ratios[f"{row.state} : uncompacted"] = _quotient(row.median, other.median)


def _series(row: Row) -> tuple[str, str, str]:
    return row.place, row.state, row.measure


def _quotient(above: float, below: float) -> float:
    return above / below if below else math.nan


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    heads = ("trials", "place", "state", "measure", "median", "min", "max", "unit", "runs", "growth", "ratio")
    table = Table(*heads, title="growth: over the next smaller store; ratio: to the uncompacted store, or ours : rival")
    for row in rows:
        ratios = [
            f"{_number(value)} ({name.partition(' : ')[0]})" if row.state in RIVALS else _number(value)
            for name, value in row.ratios.items()
        ]
        table.add_row(
            f"{row.trials:,}",
            row.place,
            row.state,
            row.measure,
            *(_number(value) for value in (row.median, min(row.values), max(row.values))),
            row.unit,
            str(len(row.values)),
            _number(row.growth),
            "\n".join(ratios),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _label(trials: int) -> str:
    return f"{trials // 1000}k" if trials % 1000 == 0 else str(trials)


def _depthrate(arguments: Sequence[str], environment: Mapping[str, str]) -> Ended:
    return _run([sys.executable, "-m", "depthrate", *arguments], environment)


def _module(name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
    return _run([sys.executable, "-m", f"benchmarks.{name}", *arguments], environment)


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Ended:
    """Run a process to its end.

    Its peak memory counts ours at the moment it is born: this process must stay small.

    Raises:
        subprocess.CalledProcessError: it failed; its last words are in the error.
    """
    python_path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": python_path, **(environment or {})}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors, env=variables)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            error = subprocess.CalledProcessError(process.returncode, command, output.read(), errors.read())
            error.add_note(error.stderr[-2000:])
            raise error
        return Ended(output.read(), seconds, usage.ru_maxrss * _maxrss_bytes() / 1e6)


def _maxrss_bytes() -> int:
    return 1 if sys.platform == "darwin" else 1024


def _drop_from_page_cache(folder: Path) -> None:
    os.sync()  # only clean pages can be dropped
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _machine() -> dict[str, Any]:
    def git(*arguments: str) -> str | None:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "git_sha": git("rev-parse", "HEAD"),
        "git_dirty": bool(git("status", "--porcelain")),
    }


if __name__ == "__main__":
    main()
