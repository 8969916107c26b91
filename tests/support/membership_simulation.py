"""Sweeps that share trials are launched, removed, compacted and verified at once, one store operation at a time.

The real code runs under the seeded scheduler of `storage_simulation`, which also kills. What must hold at the end: every
trial that a sweep still asks for, and had when its launch was done, is there, whole and once; what nobody asks for and was
removed is not. Alone: `python -m membership_simulation 1000` (from tests/support) runs that many interleavings.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from depthrate.orchestrator.analysis.columns import builtin_columns
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.catalog.requested_trials import requested_ids
from depthrate.storage.catalog.specs import newest_specs, write_spec
from depthrate.storage.commits.commit import commit_trials
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep, rows_of_trials
from depthrate.storage.maintenance.verify import verify
from tests.support.storage_simulation import Simulation
from tests.support.tests_rows import tables_of

SPOILT = "t9"
"""The only trial whose results are removed by its name."""


class Desk(Simulation):
    """Several sweeps of one store, and those who remove them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ticks = 0
        self.launched: dict[str, tuple[int, frozenset[str]]] = {}
        """Sweep -> when its last launch that came to its end began, and its trials."""
        self.removed: dict[str, int] = {}
        """Sweep -> when somebody was last busy removing it."""

    def tick(self) -> int:
        """Return a later moment than before."""
        self.ticks += 1
        return self.ticks

    def launch(self, sweep: str, trial_ids: Sequence[str]) -> None:
        """Add a launch: plan, write down what is asked for, look again, run what is not there, until all is."""
        ids, spec = frozenset(trial_ids), "".join(sorted(trial_ids))

        def work() -> None:
            store, began = self._store(), self.tick()
            while True:
                done = ids & take_snapshot(store).trial_ids()
                write_spec(store, sweep, spec, {"name": sweep}, sorted(ids))
                if store.list("removals") and done - take_snapshot(store).trial_ids():
                    continue  # `run` says so and is called again
                if todo := sorted(ids - done):
                    self._commit(store, sweep, todo)
                if ids <= take_snapshot(store).trial_ids():
                    break
            self.launched[sweep] = (began, ids)

        self._add(f"launch of {sweep}", work)

    def _commit(self, store: Store, sweep: str, trial_ids: Sequence[str]) -> None:
        self._attempts += 1
        attempt = f"20260101T000000_{self._attempts:012d}"
        record = {"attempt_id": attempt, "sweep": sweep, "trial_ids": list(trial_ids), "state": "done"}
        record |= {"started_at": 1e9, "heartbeat_at": 1e9, "ended_at": 1e9}
        store.write(f"attempts/sweep={sweep}/{attempt}.json", json.dumps(record).encode())
        row = {"sweep": sweep, "attempt_id": attempt, "status": "ok", "params": "{}", "committed_at": datetime.now(UTC)}
        each = [tables_of(trial_id, attempt) for trial_id in trial_ids]
        tables = {name: [one[name] for one in each] for name in ("metrics", "curves", "features")}
        trials = [{"trial_id": trial_id, **row} for trial_id in trial_ids]
        commit_trials(
            store, sweep=sweep, attempt_id=attempt, part=None, trials=trials, tables=tables, columns=builtin_columns()
        )

    def remove(self, sweep: str) -> None:
        """Add somebody who removes a sweep."""

        def work() -> None:
            store = self._store()
            try:
                remove_sweep(store, plan_removal(store, take_snapshot(store), sweep))
            except FileNotFoundError:
                pass  # somebody else puts the same files away
            finally:
                self.removed[sweep] = self.tick()

        self._add(f"removal of {sweep}", work)

    def spoil(self) -> None:
        """Add somebody who removes the results of one trial."""

        def work() -> None:
            store = self._store()
            remove(store, RemovalKind.TRIALS, "", rows_of_trials(take_snapshot(store), [SPOILT]))

        self._add("removal of a trial", work)

    def verification(self) -> None:
        """Add somebody who verifies and repairs."""

        def work() -> None:
            store = self._store()
            repair(store, verify(store, builtin_columns()))

        self._add("verification", work)

    def check_sweeps(self) -> None:
        """Compare what is there with what sweeps still ask for."""
        results = results_of(self.store)
        self.check(results, set())
        there = {row[0] for row in results.sql("select trial_id from trials").fetchall()}
        for sweep, (began, ids) in self.launched.items():
            if self.removed.get(sweep, 0) < began:
                lost = ids - there - {SPOILT}
                assert not lost, f"seed {self.seed}: sweep {sweep} lost {sorted(lost)}\n" + "\n".join(self.trace[-150:])

        members = results.membership().of_sweep
        for sweep, spec in newest_specs(self.store).items():
            own = there.intersection(spec.trial_ids(self.store) or ())
            assert members.get(sweep, set()) >= own, f"seed {self.seed}: {sweep} has not {sorted(own)}: {members}"
        assert there == set().union(*members.values()), f"seed {self.seed}: {members}"

    def check_removed(self) -> None:
        """Compare what is hidden with what nobody asks for."""
        snapshot, asked = take_snapshot(self.store), requested_ids(self.store)
        hidden = {row for item in snapshot.removals.removals for row in item.rows if row[0] not in asked}
        visible = set(zip(*(snapshot.trials[n].to_pylist() for n in ("trial_id", "attempt_id")), strict=True))
        assert not hidden & visible, f"seed {self.seed}: removed, asked for by nobody, and there: {hidden & visible}"


def simulate_desk(seed: int) -> Desk:
    """Run a random crowd, let it come to rest, and check what is left; then what compactions leave of that."""
    rng = random.Random(seed)
    desk = Desk(seed)
    trials = [f"t{number}" for number in range(6)]
    for _ in range(rng.randint(2, 4)):
        spoilt = [SPOILT] if rng.random() < 0.5 else []
        desk.launch(rng.choice("abc"), [*rng.sample(trials, rng.randint(1, 4)), *spoilt])
    for _ in range(rng.randint(1, 3)):
        desk.remove(rng.choice("abc"))
    for _ in range(rng.randint(1, 2)):
        desk.compaction()
    for add, share in ((desk.spoil, 0.5), (desk.verification, 0.6)):
        if rng.random() < share:
            add()
    desk.run(kill=0.01)
    desk.check_sweeps()
    desk.check_removed()
    for _ in range(2):
        compact(desk.store, grace_s=0.0)
        desk.check_sweeps()
        desk.check_removed()
    found = verify(desk.store, builtin_columns())
    halfway = tuple(f"sweeps/{sweep}/" for sweep in desk.removed)  # a removal that was killed, or met a launch
    wrong = [f for f in found.findings if f.kind not in ("leftover", "foreign") and not f.path.startswith(halfway)]
    assert not wrong, f"seed {seed}: {wrong}"
    return desk


def main() -> None:
    """Run as many interleavings as the command line says, and say how many operations they were."""
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    began, operations, killed, removals = time.monotonic(), 0, 0, 0
    for seed in range(first, first + count):
        desk = simulate_desk(seed)
        operations += len(desk.trace)
        killed += sum(line.endswith(": killed") for line in desk.trace)
        removals += len(desk.removed)
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1 - first} interleavings, {time.monotonic() - began:.0f} s", flush=True)
    print(
        f"{count} interleavings, {operations} operations, {killed} actors killed, {removals} sweeps removed: nothing lost"
    )


if __name__ == "__main__":
    main()
