"""The commit protocol under a scheduler that decides who goes on, who dies and what a listing shows.

Writers, compactions and readers run the real code, each in a thread of its own that stops before every operation on
the store. A seeded scheduler lets one of them do one operation at a time, so the same seed gives the same run. It may
kill an actor before an operation or in the middle of a write (a local write leaves its temporary file), and it may show
a listing without the newest writes of others, or with files just deleted. Clocks of writers differ by hours.

`Desk` also launches and removes sweeps that share trials. What must hold at the end: every trial that a sweep still requests,
and had when its launch was done, exists, whole and once. A removed trial that no sweep requests does not.
"""

import itertools
import random
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest import mock

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.storage.catalog.removals import RemovalKind, remove
from depthrate.storage.catalog.requested_trials import requested_ids
from depthrate.storage.catalog.specs import newest_specs, write_spec
from depthrate.storage.commits.snapshot import take_snapshot
from depthrate.storage.files.parquet import read_parquet
from depthrate.storage.files.protocol import Stamp
from depthrate.storage.files.store import Store
from depthrate.storage.maintenance.compact import compact
from depthrate.storage.maintenance.delta_log import named_by_delta_logs
from depthrate.storage.maintenance.repair import repair
from depthrate.storage.maintenance.sweep_removal import plan_removal, remove_sweep, rows_of_trials
from depthrate.storage.maintenance.verify import verify
from depthrate.storage.query.results import Results
from depthrate.storage.tables.schema import row_keys
from tests.support.faulty_store import fail_write
from tests.support.tests_rows import commit

QUERY = """
select trial_id, attempt_id, (select count(*) from trials u where u.trial_id = t.trial_id) copies,
       (select count(*) from metrics m where m.trial_id = t.trial_id) metrics,
       (select count(*) from metrics m where m.trial_id = t.trial_id and m.attempt_id = t.attempt_id) own_metrics,
       (select count(*) from curves c where c.trial_id = t.trial_id and c.attempt_id = t.attempt_id) curves,
       (select count(*) from features f where f.trial_id = t.trial_id and f.attempt_id = t.attempt_id) features,
       (select count(*) from features f where f.trial_id = t.trial_id) all_features
from trials t
"""
WHOLE = (1, 6, 6, 2, 4, 4)


class Killed(BaseException):
    """The actor's process is gone."""


@dataclass
class Actor:
    """Somebody who works on the store, one operation at a time."""

    name: str
    work: Callable[[], None]
    may_die: bool = True
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    dies: bool = False
    ended: bool = False
    thread: threading.Thread | None = None
    error: BaseException | None = None


_NOBODY = Actor("nobody", lambda: None)


@dataclass
class Simulation:
    """One store, its actors, and what is known to be committed."""

    seed: int
    lag: bool = False
    """Whether listings may be behind. A compaction then keeps what it replaced; its grace period is longer than any lag."""
    grace_s: float = 0.0
    committed: set[str] = field(default_factory=set)
    trace: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.store = Store(f"memory://{uuid.uuid4().hex}")
        self.actors: list[Actor] = []
        self._current: Actor | None = None
        self._recent: list[tuple[str, str]] = []
        """(who, path) of the newest writes."""
        self._attempts = 0

    # ---- actors

    def writer(self, trial_ids: Sequence[str], skew_h: float = 0.0) -> None:
        """Add an attempt that commits these trials."""
        attempt = self._new_attempt()

        def work() -> None:
            self._commit(attempt, "s", trial_ids, skew_h)
            self.committed.update(trial_ids)

        self._add(f"writer {attempt[-3:]}", work)

    def _new_attempt(self) -> str:
        self._attempts += 1
        return f"20260101T000000_{self._attempts:012d}"

    def _commit(self, attempt: str, sweep: str, trial_ids: Sequence[str], skew_h: float = 0.0) -> None:
        at = datetime.now(UTC) + timedelta(hours=skew_h)
        commit(self._store(), attempt, trial_ids, sweep=sweep, at=at, params={})

    def compaction(self) -> None:
        """Add a compaction."""

        def work() -> None:
            for _ in range(2):
                compact(self._store(), grace_s=self.grace_s, purge=True, delta=not self.lag, group_bytes=30_000)

        self._add("compaction", work)

    def reader(self, times: int = 3) -> None:
        """Add somebody who asks and checks, some times in a row."""

        def work() -> None:
            for _ in range(times):
                expected = set() if self.lag else set(self.committed)
                self.check(results_of(self._store()), expected)

        self._add("reader", work, may_die=False)

    def check(self, results: Results, expected: set[str]) -> None:
        """Compare what a reader sees with what has to be there."""
        rows = results.sql(QUERY).fetchall()
        seen = {row[0] for row in rows}
        assert not expected - seen, f"lost: {sorted(expected - seen)}"
        for row in rows:
            assert row[2:] == WHOLE, f"trial {row[0]} of attempt {row[1]} is {row[2:]}, not {WHOLE}"
        assert not results.problems, results.problems

    def _add(self, name: str, work: Callable[[], None], may_die: bool = True) -> None:
        self.actors.append(Actor(f"{len(self.actors)} {name}", work, may_die))

    # ---- the schedule

    def run(self, kill: float = 0.03) -> None:
        """Let the actors go on in a random order until all have ended; raises what a reader raised."""
        for actor in self.actors:
            actor.thread = threading.Thread(target=self._live, args=(actor,), daemon=True)
            actor.thread.start()
        while alive := [actor for actor in self.actors if not actor.ended]:
            actor = self.rng.choice(alive)
            actor.dies = actor.may_die and self.rng.random() < kill
            self._current = actor
            actor.go.release()
            actor.stopped.acquire()
            if actor.error is not None:
                schedule = "\n".join(self.trace[-80:])
                raise AssertionError(f"{schedule}\nseed {self.seed}, {actor.name}: {actor.error!r}") from actor.error

    def _live(self, actor: Actor) -> None:
        actor.go.acquire()
        try:
            actor.work()
        except Killed:
            self.trace.append(f"{actor.name}: killed")
        except BaseException as error:
            actor.error = error
        actor.ended = True
        actor.stopped.release()

    def step(self, what: str) -> Actor:
        """Wait for the scheduler before an operation."""
        actor = self._current
        if actor is None or threading.current_thread() is not actor.thread:
            return _NOBODY  # one of DuckDB's threads, while the actor's own waits in it: a scan is one operation
        actor.stopped.release()
        actor.go.acquire()
        if actor.dies and not what.startswith("write"):
            raise Killed
        self.trace.append(f"{actor.name}: {PROBE.sub('.probe', what)}")
        return actor

    def _store(self) -> Store:
        return SteppedStore(self.store.url, self)

    def wrote(self, actor: Actor, path: str) -> None:
        """Remember a write that listings may not show yet."""
        self._recent = [*self._recent[-7:], (actor.name, path)]

    def unseen(self, actor: Actor) -> set[str]:
        """Return the writes of others that this listing does not show."""
        if not self.lag or self.rng.random() < 0.5:
            return set()
        newest = self._recent[self.rng.randrange(8) :]
        return {path for who, path in newest if who != actor.name}


PROBE = re.compile(r"\.probe-[0-9a-f]+")
"""Files by which the clock is compared; each has a name of its own."""


class SteppedStore(Store):
    """A store whose every operation waits for the scheduler."""

    def __init__(self, url: str, simulation: Simulation):
        super().__init__(url)
        self._simulation = simulation

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        self._simulation.step(f"read {path}")
        return super().read(path, max_bytes)

    def write(self, path: str, content: bytes, *, durable: bool = False) -> None:
        actor = self._simulation.step(f"write {path}")
        if actor.dies:
            moment = self._simulation.rng.choice(("amid", "amid", "before", "after"))
            fail_write(super().write, path, content, moment, Killed)
        super().write(path, content, durable=durable)
        self._simulation.wrote(actor, path)

    def create(self, path: str, content: bytes) -> bool:
        actor = self._simulation.step(f"create {path}")
        if actor.dies and self._simulation.rng.random() < 0.5:
            raise Killed
        is_new = super().create(path, content)
        if actor.dies:  # the write went through, and nobody lived to hear of it
            raise Killed
        self._simulation.wrote(actor, path)
        return is_new

    def list(self, folder: str = "") -> dict[str, int]:
        actor = self._simulation.step(f"list {folder}")
        hidden = self._simulation.unseen(actor)
        return {path: size for path, size in super().list(folder).items() if path not in hidden}

    def stamps(self, folder: str) -> dict[str, Stamp]:
        self._simulation.step(f"list {folder}")
        return super().stamps(folder)

    def move(self, path: str, to: str) -> None:
        self._simulation.step(f"move {path}")
        super().move(path, to)

    def size(self, path: str) -> int | None:
        self._simulation.step(f"size {path}")
        return super().size(path)

    def delete(self, path: str, *, durable: bool = False) -> None:
        self._simulation.step(f"delete {path}")
        super().delete(path, durable=durable)

    def delete_many(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)


def simulate(seed: int, *, lag: bool) -> Simulation:
    """Run a random crowd on an empty store, then let it come to rest, and check what is left."""
    rng = random.Random(seed)
    simulation = Simulation(seed, lag=lag, grace_s=3600.0 if lag else 0.0)
    for number in range(rng.randint(3, 6)):
        trials = [f"t{number}{letter}" for letter in "ab"[: rng.randint(1, 2)]]
        simulation.writer(trials, skew_h=rng.choice([-5, 0, 3]))
        if rng.random() < 0.4:  # an attempt that was taken for dead, or another launch
            again = list(dict.fromkeys([*trials, "t0a"]))[: rng.randint(1, 3)]
            simulation.writer(again, skew_h=rng.choice([-5, 0, 3]))
    for _ in range(rng.randint(1, 4)):
        simulation.compaction()
    for _ in range(2):
        simulation.reader(times=2)
    names = (f"{number:06d}" for number in itertools.count())
    with mock.patch(
        "depthrate.storage.maintenance.compact.new_name", side_effect=names
    ):  # else every run has other names
        simulation.run()
    return simulation


def settle(simulation: Simulation) -> dict[str, Any]:
    """Compact without anybody else and return what is there then; raises if it is not what was committed."""
    simulation.check(results_of(simulation.store), simulation.committed)
    compact(simulation.store, grace_s=0)
    results = results_of(simulation.store)
    simulation.check(results, simulation.committed)
    listing = simulation.store.list()
    return {"trials": results.snapshot.trial_ids(), "listing": listing, "snapshot": results.snapshot}


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
                    self._commit(self._new_attempt(), sweep, todo)
                if ids <= take_snapshot(store).trial_ids():
                    break
            self.launched[sweep] = (began, ids)

        self._add(f"launch of {sweep}", work)

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
            repair(store, verify(store))

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

    def check_delta(self, *, is_current: bool) -> None:
        """Check that all files which the Delta logs name exist, and after a compaction that their rows are the visible ones."""
        named, snapshot = named_by_delta_logs(self.store), take_snapshot(self.store)
        missing = named - self.store.list().keys()
        assert not missing, f"seed {self.seed}: {missing}\n" + "\n".join(self.trace[-150:])
        for table in ("trials", "metrics") if is_current else ():
            rows = [read_parquet(self.store.read(path)) for path in sorted(named) if path.startswith(f"{table}/")]
            keys = [key for part in rows for key in set(row_keys(part))]
            visible = row_keys(snapshot.trials)
            assert sorted(keys) == sorted(visible), f"seed {self.seed}: {table} has {keys}, visible are {visible}"

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
    desk.check_delta(is_current=False)
    for _ in range(2):
        assert not compact(desk.store, grace_s=0.0, purge=True, delta=True).refused
        desk.check_sweeps()
        desk.check_delta(is_current=True)
        desk.check_removed()
    found = verify(desk.store)
    halfway = tuple(f"sweeps/{sweep}/" for sweep in desk.removed)  # a removal that was killed, or met a launch
    wrong = [f for f in found.findings if f.kind not in ("leftover", "foreign") and not f.path.startswith(halfway)]
    assert not wrong, f"seed {seed}: {wrong}"
    return desk
