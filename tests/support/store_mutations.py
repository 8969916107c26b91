"""Random changes to a small store, as colleagues, disks and malice make them; and what a reader sees of it.

python -m tests.support.store_mutations --count 2000 --seed 1
"""

import argparse
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.executors.slurm.submissions import Submission, SubmittedPack, read_submissions
from depthrate.orchestrator.launch.launch_plan import check_sweep
from depthrate.storage.attempts.searches import Batch, SearchRecords
from depthrate.storage.catalog.code import list_code_hashes, read_code, store_code
from depthrate.storage.catalog.code_decisions import DecisionKind, decide
from depthrate.storage.catalog.specs import newest_specs, write_spec
from depthrate.storage.commits.commit import METADATA_KEY
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.json_objects import with_digest
from depthrate.storage.files.parquet import trials_bytes
from depthrate.storage.files.paths import is_compacted
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance import verify
from depthrate.storage.maintenance.compact import compact
from depthrate.sweeps.load import sweep_of_spec
from tests.support.here import invoke
from tests.support.tests_rows import commit

SPEC = {
    "name": "tiny",
    "task": "collapse",
    "grid": {"depth": [2, 3]},
    "seeds": 2,
    "params": {"arch": "rn1", "samples_per_class": 5, "steps": 40, "width": 16},
}
A, B, C, D = (f"20260101T000000_{letter * 12}" for letter in "abcd")
OUTSIDE = ("keys.txt", "x/keys.txt", "tiny/notes/keys.txt")
HINTS = ("attempts/", "jobs/", "checkpoints/", "searches/")
"""What is in them decides how work is done, not what is there: a wrong value costs time at most."""
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 3, 10**30, 1e999, float("nan"), "", "\ud800", "a\x1b[2J\x00", [], {}, [[]], "x" * 5000),
    *("../keys.txt", "../../keys.txt", "../../../x/keys.txt", "/etc/hostname", "..", ".", "a/../../keys.txt"),
)


def make_store(place: Path) -> tuple[Store, Path]:
    """Make a store with one of everything in it, and files beside it that nobody may touch."""
    for name in OUTSIDE:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("mine")
    store = Store(str(place / "store"))
    sweep = place / "tiny.yaml"
    sweep.write_text(yaml.safe_dump(SPEC))
    checked = check_sweep(sweep_of_spec(SPEC))
    ids = [trial.trial_id for trial in checked.trials]
    params = dict(checked.trials[0].params)
    commit(store, A, ids[:1], sweep="tiny", hour=1, params=params)
    commit(store, B, ["t8", "t9"], sweep="tiny", hour=2)
    compact(store, grace_s=0)
    commit(store, C, ids[1:2], sweep="tiny", hour=3, params=params)
    commit(store, D, ["t7"], sweep="other", hour=4)
    store.write(f"attempts/sweep=tiny/{D}.json", json.dumps(_record(D, ids[2:3])).encode())
    store.write(f"attempts/sweep=tiny/{D}.log", b"it printed this")
    write_spec(store, "tiny", checked.sweep.spec_hash(), checked.sweep.spec(), ids)
    name = f"depthrate-tiny-{A}"
    submission = Submission(
        name, "tiny", "lab", str(place / "tiny" / name), [[SubmittedPack(D, "p", ids[2:3])]], ["7_0"]
    )
    submission.write(store)
    store.write("checkpoints/p1/pack.json", with_digest({"trial_ids": ids[2:], "wall_s": 1.0}))
    store.write("checkpoints/p1/pack.ckpt", b"weights")
    searches = SearchRecords(store, "tiny")
    searches.write(Batch("0123456789abcdef", 0, ({"lr": 0.1},), ((ids[3],),)))
    reports = {ids[3]: {"values": {"5": 0.1}, "pruned_at": None}}
    store.write(f"searches/sweep=tiny/reports/{D}.json", with_digest({"reports": reports}))
    store.write("sweeps/tiny/cancel", b"0123")
    version = store_code(store, "law.py", {"law.py": b"import parts", "parts.py": b"SCALE = 1"})
    decide(store, take_snapshot(store).decisions, DecisionKind.RERUN, "tiny", version, {version}, ["t9"])
    return store, sweep


def _record(attempt_id: str, trial_ids: list[str]) -> dict[str, Any]:
    record = {"attempt_id": attempt_id, "sweep": "tiny", "pack_id": "p1", "trial_ids": trial_ids, "state": "lost"}
    record |= {"started_at": 1e9, "heartbeat_at": 1e9, "ended_at": 1e9, "host": "h", "pid": 1, "job_id": None}
    return record | {"device": "cpu", "step": 1, "num_steps": 40, "trials_done": 0, "error_kind": "worker_lost"}


def seen(store: Store) -> dict[str, Any]:
    """Return what readers see of the store: what a mutation changes here matters."""
    results = results_of(store)
    for view in ("metrics", "curves", "features"):
        results.sql(f"select * from {view}").fetchall()  # finds what is damaged
    answers = {
        view: sorted(map(repr, results.sql(f"select * from {view}").fetchall()))
        for view in ("trials", "metrics", "curves", "features", "fits")
    }
    answers["planned"] = sorted(take_snapshot(store).trial_ids())
    answers["specs"] = [repr((spec.sweep, spec.spec_hash, spec.spec)) for spec in newest_specs(store).values()]
    answers["listed"] = [repr(spec.trial_ids(store)) for spec in newest_specs(store).values()]
    answers["code"] = [repr(read_code(store, version)) for version in list_code_hashes(store)]
    read_submissions(store, ["tiny"])
    return answers


def outside(place: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file beside the store, with its content and when it was written."""
    files = [path for path in place.rglob("*") if path.is_file() and not path.is_relative_to(place / "store")]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def mutate(store: Store, rng: random.Random) -> str:
    """Change one thing and return what it was."""
    paths = sorted(store.list())
    path = rng.choice(paths)
    if path.endswith(".json") and rng.random() < 0.85:
        return f"{path}: {_mutate_json(store, path, rng)}"
    if path.startswith("trials/") and not is_compacted(path) and rng.random() < 0.6:
        return f"{path}: {_mutate_commit(store, path, rng)}"
    return f"{path}: {_mutate_file(store, path, rng)}"


def _mutate_file(store: Store, path: str, rng: random.Random) -> str:
    content = store.read(path)
    full, middle = Path(store.full_path(path)), rng.randrange(max(1, len(content)))
    names = ["..x", "a b", "x\ny", "-", "é.json", f"{A}.json", f"{B}.parquet", "x.parquet"]
    flipped = content[:middle] + bytes(byte ^ 1 << rng.randrange(8) for byte in content[middle : middle + 1])
    changes: dict[str, Callable[[], object]] = {
        "empty": lambda: full.write_bytes(b""),
        "cut": lambda: full.write_bytes(content[:middle]),
        "flip": lambda: full.write_bytes(flipped + content[middle + 1 :]),
        "delete": full.unlink,
        "rename": lambda: full.rename(full.with_name(rng.choice(names))),
        "swap": lambda: full.write_bytes(store.read(rng.choice(sorted(store.list())))),
        "link": lambda: (full.unlink(), full.symlink_to(Path(store.root).parent / "keys.txt")),
        "nested": lambda: full.write_bytes(b"[" * 100_000),
        "append": lambda: full.write_bytes(content + b"\x00{"),
    }
    kind = rng.choice(list(changes))
    changes[kind]()
    return kind


def _nodes(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in entries:
        yield from _nodes(item, (*at, key))


def _mutate_node(fields: Any, rng: random.Random) -> str:
    """Replace, delete or add one value anywhere in some JSON."""
    at = rng.choice(list(_nodes(fields)))
    holder = fields
    for key in at[:-1]:
        holder = holder[key]
    kind = rng.random()
    if kind < 0.15:
        del holder[at[-1]]
        return f"{at} deleted"
    if kind < 0.25 and isinstance(holder, dict):
        holder[str(rng.choice(ODD))] = rng.choice(ODD)
        return f"{at[:-1]} has one more"
    holder[at[-1]] = rng.choice(ODD)
    return f"{at} is {holder[at[-1]]!r:.60}"


def _mutate_json(store: Store, path: str, rng: random.Random) -> str:
    try:
        fields = json.loads(store.read(path))
        what = _mutate_node(fields, rng)
    except (ValueError, IndexError):
        return _mutate_file(store, path, rng)
    if isinstance(fields, dict) and rng.random() < 0.5:
        fields.pop("sha256", None)  # whoever means it leaves out the digest
    if rng.random() < 0.02:
        fields, what = rng.choice(ODD), "not an object"
    Path(store.full_path(path)).write_text(json.dumps(fields))
    return what


def _mutate_commit(store: Store, path: str, rng: random.Random) -> str:
    """Write a commit anew with a value changed, and every checksum right."""
    table = pq.read_table(io.BytesIO(store.read(path)))
    metadata = json.loads(table.schema.metadata[METADATA_KEY])
    if rng.random() < 0.6:
        what = _mutate_node(metadata, rng)
    else:
        name = rng.choice(["trial_id", "sweep", "task", "attempt_id", "pack_id", "status", "host", "params"])
        value = rng.choice([odd for odd in ODD if odd is None or (isinstance(odd, str) and odd.isprintable())])
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, pa.array([value] * table.num_rows, pa.string()))
        what = f"{name} is {value!r:.60}, forged"
    schema = table.schema.with_metadata({METADATA_KEY: json.dumps(metadata)})
    Path(store.full_path(path)).write_bytes(trials_bytes(table.cast(schema)))
    return what


def can_be_known(what: str) -> bool:
    """Whether the store can know of a mutation: not if it is a hint, a sweep that was removed, or a forged checksum."""
    if what.startswith("sweeps/") and what.endswith((": delete", ": rename", ": link")):
        return False
    return not what.startswith(HINTS) and not what.endswith(", forged") and not what.startswith("sweeps/tiny/cancel")


def fuzz(count: int, seed: int, place: Path) -> tuple[Counter[str], list[str]]:
    """Mutate a store `count` times, each time from the beginning, and return (counts, faults)."""
    store, sweep = make_store(place)
    verify.YOUNG_S = -10.0  # nothing of it is on its way to a commit
    clean, before, at_first = place.with_name(f"{place.name}-clean"), outside(place), seen(store)
    shutil.copytree(store.root, clean)
    counts, faults = Counter[str](), list[str]()
    commands = {
        "status": ["status"],
        "plan": ["plan", str(sweep)],
        "query": ["query", "select trial_id, nc1, depth from results"],
        "logs": ["logs", "t8"],
        "compact": ["compact", "--retain-hours", "0", "--purge"],
        "repair": ["verify", "--repair"],
    }
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        shutil.rmtree(store.root)
        shutil.copytree(clean, store.root)
        what = f"{seed} {number} {mutate(store, rng)}"
        mutation = what.split(" ", 2)[2]

        def run(name: str, arguments: list[str], what: str = what) -> int | None:
            try:
                code, _ = invoke(*arguments, "--store", store.root)
            except Exception as error:
                faults.append(f"{what}: {name} ended in {type(error).__name__}: {str(error)[:200]}")
                return None
            counts[f"{name} {code}"] += 1
            return code

        named = run("verify", ["verify"])
        try:
            matters = seen(store) != at_first
        except Exception as error:
            faults.append(f"{what}: reading ended in {type(error).__name__}: {str(error)[:200]}")
            matters = False
        counts["matters"] += matters
        if matters and named == 0 and can_be_known(mutation):
            faults.append(f"{what}: matters and was not named")
        for name, arguments in commands.items():
            if rng.random() < {"compact": 0.5, "repair": 1.0}.get(name, 0.4):
                run(name, arguments)
        if number % 50 == 49:
            print(f"{number + 1} mutations, {len(faults)} faults", *faults[-3:], sep="\n  ", file=sys.stderr)
        if outside(place) != before:
            faults.append(f"{what}: something outside the store was touched")
            return counts, faults
    return counts, faults


def main() -> None:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("DEPTHRATE_STORE", None)
        counts, faults = fuzz(given.count, given.seed, Path(folder) / "place")
    print(json.dumps(counts, indent=1, sort_keys=True))
    print(f"{len(faults)} faults", *faults, sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
