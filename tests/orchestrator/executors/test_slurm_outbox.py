"""How packs get into a queue that has little room, against a cluster that counts."""

from collections import Counter
from getpass import getuser
from pathlib import Path
from typing import Any

import pytest

from depthrate.orchestrator.attempts.spec import AttemptSpec
from depthrate.orchestrator.executors.slurm import submitter
from depthrate.orchestrator.executors.slurm.request_rate import RequestBudget
from depthrate.orchestrator.executors.slurm.submissions import Submission
from depthrate.orchestrator.executors.slurm.submitter import (
    COUNT_INTERVAL_S,
    SbatchRateError,
    SubmitQuota,
    Submitter,
)
from depthrate.slurm.cluster_limits import JobGroup, Limits, SubmitLimits
from depthrate.slurm.command import CALLS
from depthrate.slurm.errors import SlurmError, SubmitLimitError, UnclearSubmissionError
from depthrate.slurm.profile import Profile
from depthrate.storage.files.store import Store
from tests.support.launches import spec_of


class Cluster:
    """A scheduler that accepts a fixed number of jobs."""

    def __init__(self, most: int) -> None:
        self.most, self.there, self.calls, self.now = most, 0, 0, 0.0
        self.counts = 0
        self.is_unclear = False
        self.refusal = "AssocMaxSubmitJobLimit"
        self.known: dict[str, list[str]] = {}
        self.cancelled: list[str] = []

    def count(self, group: JobGroup | None = None) -> Counter[str]:
        self.counts += 1
        return Counter({getuser(): self.there})

    def submit(
        self, profile: Any, name: str, folder: Any, function: Any, arguments: list[Any], exclude: Any
    ) -> list[str]:
        self.calls += 1
        if self.there + len(arguments) > self.most:
            raise SubmitLimitError(self.refusal)
        self.there += len(arguments)
        self.known[name] = [f"{self.calls}_{index}" for index in range(len(arguments))]
        if self.is_unclear:
            raise UnclearSubmissionError("sbatch gave no answer")
        return self.known[name]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(5)
    monkeypatch.setattr(submitter, "submit_array", made.submit)
    monkeypatch.setattr(JobGroup, "count", made.count)
    monkeypatch.setattr(submitter, "find_submitted", lambda name, count: made.known.get(name, []))
    monkeypatch.setattr(submitter, "cancel_jobs", made.cancelled.extend)
    return made


class Anytime(RequestBudget):
    """Lets sbatch be called without end."""

    def may_submit(self, *, is_full: bool) -> bool:
        return True


def outbox_of(
    cluster: Cluster, store: Store, known_limit: int | None, profile: Profile | None = None
) -> tuple[Submitter, SubmitQuota]:
    clock = lambda: cluster.now  # noqa: E731
    room = SubmitQuota(SubmitLimits({} if known_limit is None else {JobGroup(): known_limit}), clock)
    limits = Limits("lab", 101, 1000, {})
    return Submitter(profile or Profile(), limits, store, "s", room, Anytime(clock)), room


def bundles(count: int) -> list[list[AttemptSpec]]:
    ids = [f"20260101T000000_{number:012d}" for number in range(2 * count)]
    jobs = [spec_of(name, pack_id=name, trial_ids=[name]) for name in ids]
    return [jobs[2 * number : 2 * number + 2] for number in range(count)]


def submit(outbox: Submitter, cluster: Cluster, count: int) -> list[Submission]:
    taken: list[Submission] = []
    try:
        for array in outbox.submit(bundles(count), [], lambda: ["a job"] * cluster.there):
            taken.append(array)
    except SubmitLimitError:
        pass
    return taken


def test_a_limit_that_is_known_costs_one_submission(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, 5)
    assert [len(array.packs) for array in submit(outbox, cluster, 30)] == [5] and cluster.calls == 1
    assert not submit(outbox, cluster, 25) and cluster.calls == 1, "no requests while the queue is full"
    cluster.there = 3
    assert [len(array.packs) for array in submit(outbox, cluster, 25)] == [2]


def test_other_jobs_are_counted_once(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, 5)
    submit(outbox, cluster, 30)
    for ended in range(5):
        cluster.there = ended
        submit(outbox, cluster, 1)
    assert cluster.counts == 1
    cluster.now, cluster.there = COUNT_INTERVAL_S + 1, 0
    submit(outbox, cluster, 1)
    assert cluster.counts == 2


def test_an_unknown_limit_halves_the_arrays(cluster: Cluster, folder: Store) -> None:
    outbox, room = outbox_of(cluster, folder, None)
    taken = submit(outbox, cluster, 30)
    assert sum(len(array.packs) for array in taken) == 5 and room.max_jobs is None and cluster.calls <= 9
    assert len(folder.list("jobs")) == len(taken), "refused submissions are deleted"
    calls = cluster.calls
    assert not submit(outbox, cluster, 25) and cluster.calls == calls + 1, "one job, which is refused"
    cluster.there, cluster.most = 3, 50
    assert sum(len(array.packs) for array in submit(outbox, cluster, 25)) == 25


def test_parallel_jobs_bounded_over_arrays(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, None, Profile(array_parallelism=4))
    cluster.most = 100
    assert [len(array.packs) for array in submit(outbox, cluster, 9)] == [9], "SLURM bounds one array"
    assert not submit(outbox, cluster, 3), "9 jobs wait or run"
    cluster.there = 2
    assert [len(array.packs) for array in submit(outbox, cluster, 3)] == [2]


def test_unusable_cluster_is_reported(cluster: Cluster, folder: Store) -> None:
    cluster.most = 0
    outbox, _ = outbox_of(cluster, folder, None)
    with pytest.raises(SlurmError, match="allow no job of this user") as caught:
        list(outbox.submit(bundles(3), [], list))
    assert not isinstance(caught.value, SubmitLimitError) and not folder.list("jobs")


def test_ambiguous_submissions_are_cancelled_first(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, None)
    cluster.is_unclear = True
    with pytest.raises(UnclearSubmissionError):
        list(outbox.submit(bundles(2), [], list))
    assert len(folder.list("jobs")) == 1, "later launches find it by name"
    cluster.is_unclear = False
    assert len(submit(outbox, cluster, 2)) == 1
    assert cluster.cancelled == ["1_0", "1_1"] and len(folder.list("jobs")) == 1


@pytest.mark.parametrize("refusal", ["AssocGrpSubmitJobsLimit", "QOSMaxSubmitJobPerAccountLimit", "MaxJobCount"])
@pytest.mark.parametrize("most", [0, 3])
def test_a_limit_that_others_fill_is_named(cluster: Cluster, folder: Store, most: int, refusal: str) -> None:
    """A refusal may use up the rate of sbatch, which is not the cause. The launch waits, whoever the jobs belong to."""
    cluster.most, cluster.refusal = most, refusal
    clock = lambda: cluster.now  # noqa: E731
    room = SubmitQuota(SubmitLimits(), clock)
    outbox = Submitter(Profile(), Limits("lab", 101, 1000, {}), folder, "s", room, RequestBudget(clock))
    jobs = [job for pair in bundles(9) for job in pair]
    for _ in range(4):
        with pytest.raises((SubmitLimitError, SbatchRateError), match=refusal):
            for _ in outbox.submit_packs(jobs, list, lambda: ["a job"] * cluster.there):
                pass
        cluster.now += 30.0


@pytest.mark.parametrize("num_arrays", [9, 50])
def test_sbatch_rate_within_a_submission(cluster: Cluster, folder: Store, num_arrays: int) -> None:
    cluster.most, called = 10_000, list[float]()
    clock = lambda: cluster.now  # noqa: E731
    limits = Limits("lab", 3, 1000, {})
    room = SubmitQuota(SubmitLimits(), clock)
    outbox = Submitter(Profile(), limits, folder, "s", room, RequestBudget(clock))
    left = bundles(2 * num_arrays)
    while left:
        try:
            for submission in outbox.submit(left, [], list):
                called.append(cluster.now)
                left = left[len(submission.packs) :]
        except SbatchRateError:
            cluster.now += 0.5
    assert len(called) == num_arrays == cluster.calls, "no pack is submitted twice"
    assert max(sum(begin <= at < begin + 60 for at in called) for begin in called) <= 6
    assert cluster.now <= 20 * num_arrays


def test_remaining_room_before_sbatch(cluster: Cluster, folder: Store) -> None:
    """A detached launch then exits immediately."""
    clock = lambda: cluster.now  # noqa: E731
    room = SubmitQuota(SubmitLimits({JobGroup(): 5}), clock)
    outbox = Submitter(Profile(), Limits("lab", 1, 1000, {}), folder, "s", room, RequestBudget(clock))
    with pytest.raises(SubmitLimitError, match="the cluster accepts 5 jobs of this user"):
        list(outbox.submit(bundles(30), [], lambda: ["a job"] * cluster.there))
    assert cluster.calls == 3


def test_each_account_counts_as_a_call(cluster: Cluster, folder: Store, monkeypatch: Any) -> None:
    def submit(*args: Any) -> list[str]:
        CALLS["sbatch"] += 4
        return cluster.submit(*args)

    monkeypatch.setattr(submitter, "submit_array", submit)
    clock = lambda: cluster.now  # noqa: E731
    room, limits = SubmitQuota(SubmitLimits(), clock), Limits("lab", 2, 1000, {})
    outbox = Submitter(Profile(), limits, folder, "s", room, RequestBudget(clock))
    with pytest.raises(SbatchRateError):
        list(outbox.submit(bundles(2), [], list))
    assert cluster.calls == 1


def test_qos_limit_counts_its_jobs(cluster: Cluster, folder: Store, monkeypatch: Any) -> None:
    """Hundreds of jobs in another QOS do not count. Jobs of other users count towards a limit of all users."""
    few, everyone = JobGroup(qos="few"), JobGroup(qos="few", is_shared=True)
    counts = {
        JobGroup(): Counter({getuser(): 300}),
        few: Counter({getuser(): 1}),
        everyone: Counter({getuser(): 1, "bob": 30, "eve": 7}),
    }
    monkeypatch.setattr(JobGroup, "count", lambda group: counts[group].copy())
    clock = lambda: cluster.now  # noqa: E731
    room = SubmitQuota(SubmitLimits({few: 5}, qos="few"), clock)
    assert room.remaining(0) == 4
    assert (
        room.describe(4)
        == "QOS few accepts 5 jobs of this user, and has 4 jobs of this launch, 1 other job of this user"
    )
    room = SubmitQuota(SubmitLimits({few: 5, everyone: 40}, qos="few"), clock)
    assert room.remaining(0) == 2
    wanted = (
        "accepts 40 jobs of all users, and has 2 jobs of this launch, 1 other job of this user, 30 of bob, 7 of eve"
    )
    assert room.describe(2) == f"QOS few {wanted}"


def test_rejected_arrays_lose_their_folder(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, None)
    taken = submit(outbox, cluster, 30)
    names = {path.parent.name for path in Path(folder.root).glob("slurm/s/*/trials")}
    assert names == {array.name for array in taken} and cluster.calls > len(taken)
