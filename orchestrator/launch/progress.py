"""What a launch tells those who watch it, how it ended, and what may give it more to do while it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from depthrate.orchestrator.attempts.retry import RULES, Cause, Failure
from depthrate.orchestrator.executors.base import LaunchJob
from depthrate.storage.attempts.heartbeats import Beat
from depthrate.storage.attempts.records import Record
from depthrate.sweeps.packing import Pack


@dataclass
class PackEntry:
    """A pack on its way: which attempt of it runs, and how it failed before."""

    pack: Pack
    failures: list[Failure] = field(default_factory=list)
    beat: Beat | None = None
    """How far its attempt is, where that has started; empty before that was heard."""
    heard_at: float | None = None
    """When its attempt last gave a new sign of life, on the driver's clock; None before it has started."""
    not_before: float = 0.0
    """When it may start, on the driver's clock."""
    then: list[PackEntry] = field(default_factory=list)
    """Short packs that the same attempt runs after this one."""
    goes_alone: bool = False
    """Whether it is to have an attempt of its own: one of several in which it was ended without a word."""

    @property
    def trial_ids(self) -> list[str]:
        """The trials that its attempt has, those of the packs behind it included."""
        return [*self.pack.trial_ids, *(trial_id for each in self.then for trial_id in each.pack.trial_ids)]

    @property
    def avoid(self) -> list[str]:
        """Nodes on which it has failed by what may be their doing."""
        return sorted({node for node, kind in self.failures if node and Cause.NODE in RULES[kind].causes})

    def apart(self) -> list[PackEntry]:
        """Return this pack and those behind it, each on its own again."""
        entries, self.then = [self, *self.then], []
        return entries


@dataclass(frozen=True)
class Progress:
    """What a watcher sees of a launch."""

    trials_done: int
    packs_running: list[tuple[Pack, Beat]]
    """With how far their attempts are, empty where nothing was heard yet."""
    packs_queued: list[Pack]
    packs_submitted: list[Pack]
    """On their way to a machine, as far as we know."""
    waiting_for_others: int
    """Queued packs that another launch is running."""
    holders: list[Record] = field(default_factory=list)
    """The attempts that they wait for."""
    packs_added: list[Pack] = field(default_factory=list)
    """By a search, since the launch began."""
    failures: Sequence[PackFailure] = ()
    """Packs that were given up."""


def progress_of(
    running: Sequence[PackEntry],
    queue: Iterable[PackEntry],
    busy: Collection[str],
    holders: Sequence[Record],
    **told: Any,
) -> Progress:
    """Return what a watcher sees of packs that run and wait; `busy` are the trials that others have, `holders` who has them."""
    waiting = [entry for entry in queue if any(trial_id in busy for trial_id in entry.pack.trial_ids)]
    queued = {trial_id for entry in waiting for trial_id in entry.pack.trial_ids}
    behind = [each.pack for entry in running for each in entry.then]
    return Progress(
        packs_running=[(entry.pack, entry.beat) for entry in running if entry.beat is not None],
        packs_queued=[*(entry.pack for entry in queue), *behind],
        packs_submitted=[entry.pack for entry in running if entry.beat is None],
        waiting_for_others=len(waiting),
        holders=[holder for holder in holders if queued.intersection(holder["trial_ids"])],
        **told,
    )


class Watcher(Protocol):
    """Is told now and then how a launch is getting on."""

    def __call__(self, progress: Progress) -> None: ...


@dataclass(frozen=True)
class PackFailure:
    """A pack that was given up."""

    pack: Pack
    attempt_id: str
    error: str
    node: str = ""
    """On which it was last tried, where that is known."""


@dataclass
class Outcome:
    """How a launch ended."""

    failures: list[PackFailure]
    interrupted: bool
    """Asked to stop, by a signal or a cancellation."""
    stopped_early: bool
    cancelled: bool = False
    """By `depthrate cancel`, or by the user or an administrator of a scheduler."""


@dataclass(frozen=True)
class Detached:
    """How many packs a launch left behind that submitted them and went."""

    on_their_way: int
    elsewhere: int
    """Claimed or run by another launch, which was there first."""
    not_submitted: int
    """For lack of room, or because the scheduler went away meanwhile."""
    job: LaunchJob | None = None
    """That submits those."""


class Feed(Protocol):
    """Gives a launch more packs as results come in: a search."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        ...

    def next_packs(self, given_up: Collection[str]) -> list[Pack]:
        """Return packs that are new to the launch, given what is committed and which trials it gave up."""
        ...

    def pruning(self, trial_id: str) -> Mapping[str, Any] | None:
        """Return when a trial leaves its pack, for `PackJob.pruning`."""
        ...
