"""How packs get into a queue that has little room, against a cluster that counts."""

from __future__ import annotations

from typing import Any

import pytest

from depthrate.orchestrator.executors.base import PackJob
from depthrate.orchestrator.executors.options import JobOptions
from depthrate.orchestrator.executors.slurm import submitter
from depthrate.orchestrator.executors.slurm.submissions import Submission
from depthrate.orchestrator.executors.slurm.submitter import (
    COUNT_EVERY_S,
    FORGET_S,
    ConcurrencySlots,
    SubmitQuota,
    Submitter,
)
from depthrate.slurm.command import SlurmError
from depthrate.slurm.limits import Limits
from depthrate.slurm.profile import Profile
from depthrate.slurm.submit import SubmitLimitError, UnclearSubmissionError
from depthrate.storage.files.store import Store


class Cluster:
    """Takes so many jobs and no more."""

    def __init__(self, most: int) -> None:
        self.most, self.there, self.calls, self.now = most, 0, 0, 0.0
        self.counts = 0
        self.is_unclear = False
        self.known: dict[str, list[str]] = {}
        self.cancelled: list[str] = []

    def count(self) -> int:
        self.counts += 1
        return self.there

    def submit(
        self, profile: Any, name: str, folder: Any, function: Any, arguments: list[Any], exclude: Any
    ) -> list[str]:
        self.calls += 1
        if self.there + len(arguments) > self.most:
            raise SubmitLimitError("AssocMaxSubmitJobLimit")
        self.there += len(arguments)
        self.known[name] = [f"{self.calls}_{index}" for index in range(len(arguments))]
        if self.is_unclear:
            raise UnclearSubmissionError("sbatch gave no answer")
        return self.known[name]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(5)
    monkeypatch.setattr(submitter, "submit_array", made.submit)
    monkeypatch.setattr(submitter, "count_submitted", made.count)
    monkeypatch.setattr(submitter, "find_submitted", lambda name, count: made.known.get(name, []))
    monkeypatch.setattr(submitter, "cancel_jobs", made.cancelled.extend)
    return made


def outbox_of(cluster: Cluster, store: Store, said: int | None) -> tuple[Submitter, SubmitQuota]:
    room = SubmitQuota(said, lambda: cluster.now)
    return Submitter(Profile(), Limits("lab", 101, 1000, {}), store, "s", room, ConcurrencySlots(None)), room


def bundles(count: int) -> list[list[PackJob]]:
    options = JobOptions(store="", data="", device="cpu", checkpoint_seconds=1, git_sha=None, git_dirty=None)
    common: dict[str, Any] = {"sweep": "s", "task": "t", "params": [], "options": options}
    ids = [f"20260101T000000_{number:012d}" for number in range(2 * count)]
    jobs = [PackJob(attempt_id=each, pack_id=each, trial_ids=[each], **common) for each in ids]
    return [jobs[2 * number : 2 * number + 2] for number in range(count)]


def submit(outbox: Submitter, cluster: Cluster, count: int) -> list[Submission]:
    taken: list[Submission] = []
    try:
        for each in outbox.submit(bundles(count), [], lambda: ["a job"] * cluster.there):
            taken.append(each)
    except SubmitLimitError:
        pass
    return taken


def test_a_limit_that_is_known_costs_one_submission(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, 5)
    assert [len(each.packs) for each in submit(outbox, cluster, 30)] == [5] and cluster.calls == 1
    assert not submit(outbox, cluster, 25) and cluster.calls == 1, "nothing is asked while there is no room"
    cluster.there = 3
    assert [len(each.packs) for each in submit(outbox, cluster, 25)] == [2]


def test_the_users_other_jobs_are_counted_once_a_minute(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, 5)
    submit(outbox, cluster, 30)
    for ended in range(5):
        cluster.there = ended
        submit(outbox, cluster, 1)
    assert cluster.counts == 1
    cluster.now, cluster.there = COUNT_EVERY_S + 1, 0
    submit(outbox, cluster, 1)
    assert cluster.counts == 2


def test_a_limit_that_nobody_tells_is_learnt(cluster: Cluster, folder: Store) -> None:
    outbox, room = outbox_of(cluster, folder, None)
    taken = submit(outbox, cluster, 30)
    assert sum(len(each.packs) for each in taken) == 5 == room.most and cluster.calls <= 9
    assert len(folder.list("jobs")) == len(taken), "what was refused is on no books"
    calls = cluster.calls
    assert not submit(outbox, cluster, 25) and cluster.calls == calls
    cluster.there, cluster.most, cluster.now = 3, 50, COUNT_EVERY_S + 1
    assert sum(len(each.packs) for each in submit(outbox, cluster, 25)) == 2
    cluster.now = COUNT_EVERY_S + FORGET_S + 1
    assert sum(len(each.packs) for each in submit(outbox, cluster, 25)) == 25, "others of the group may have ended"


def test_a_cluster_that_takes_nothing_although_nothing_is_there_says_so(cluster: Cluster, folder: Store) -> None:
    cluster.most = 0
    outbox, _ = outbox_of(cluster, folder, None)
    with pytest.raises(SlurmError, match="take not even one job") as caught:
        list(outbox.submit(bundles(3), [], list))
    assert not isinstance(caught.value, SubmitLimitError) and not folder.list("jobs")


def test_what_may_have_been_accepted_is_cancelled_before_it_goes_out_again(cluster: Cluster, folder: Store) -> None:
    outbox, _ = outbox_of(cluster, folder, None)
    cluster.is_unclear = True
    with pytest.raises(UnclearSubmissionError):
        list(outbox.submit(bundles(2), [], list))
    assert len(folder.list("jobs")) == 1, "whoever comes now finds it by its name"
    cluster.is_unclear = False
    assert len(submit(outbox, cluster, 2)) == 1
    assert cluster.cancelled == ["1_0", "1_1"] and len(folder.list("jobs")) == 1
