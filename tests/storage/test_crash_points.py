"""Every writing verb, killed at its calls and requests: nothing is lost or duplicated, and calling it again completes
it.

DEPTHRATE_ALL_POINTS=1 kills each verb at every call and request. Without it, a sample is used.
"""

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from depthrate.orchestrator.cli.app import app
from depthrate.orchestrator.executors import registry
from tests.support.crash_points import Killed, on_bucket, on_folder
from tests.support.one_by_one import TOY
from tests.support.s3_server import S3Server
from tests.support.verbs import VERBS, Place, counting_trials, state

IS_ALL = bool(os.environ.get("DEPTHRATE_ALL_POINTS"))
SAMPLE = 3
QUICK = ("compact",)
"""Verbs in the fast tests."""
ON_BUCKET = ("commit", "compact", "run", "verify --repair")
"""Verbs that are killed at a few requests. The others only if all points are requested."""


def points(count: int) -> list[int]:
    """Return the calls at which a verb is killed: all if the environment requests it, else a sample."""
    if IS_ALL:
        return list(range(1, count + 1))
    return sorted({1 + round((count - 1) * part / (SAMPLE + 1)) for part in range(1, SAMPLE + 1)})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.executors(), "toy", TOY)
    monkeypatch.setattr("depthrate.storage.catalog.requested_trials.LIST_RETRY_DELAYS_S", (None,))
    for module in ("storage.attempts.claims", "orchestrator.attempts.liveness"):  # killed processes no longer exist
        monkeypatch.setattr(f"depthrate.{module}.is_process_gone", lambda host, pid: True)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in VERBS]
)
def test_killed_at_a_call(name: str, tmp_path: Path) -> None:
    verb, template, work = VERBS[name], tmp_path / "template", tmp_path / "work"
    place = Place(work)
    work.mkdir()
    verb.begin(place)
    before = counting_trials(place.store)
    shutil.copytree(work, template)
    with on_folder(work) as deadline:
        verb.call(place)
    verb.call(place)
    after = state(place.store)
    shutil.rmtree(work)
    selected = points(deadline.count)
    for point in selected:
        shutil.copytree(template, work)
        with on_folder(work, point), contextlib.suppress(Killed):  # heartbeats make the calls differ between runs
            verb.call(Place(work))
        retained = before - verb.removes
        assert counting_trials(Place(work).store) >= retained, f"lost at call {point} of {deadline.count}"
        verb.call(Place(work))
        assert state(Place(work).store) == after, f"after call {point} of {deadline.count}"
        shutil.rmtree(work)
    print(f"{name}: killed at {len(selected)} of {deadline.count} calls: {dict(deadline.calls)}")


def init(folder: Path) -> None:
    result = CliRunner().invoke(app, ["init", str(folder / "store")], catch_exceptions=False)
    assert result.exit_code in (0, 2), result.output


@pytest.mark.slow
def test_init_killed_at_a_call(tmp_path: Path) -> None:
    with on_folder(tmp_path) as deadline:
        init(tmp_path / "whole")
    for point in range(1, deadline.count + 1):
        work = tmp_path / f"work{point}"
        with on_folder(work, point), pytest.raises(Killed):
            init(work)
        for path in (work / "store").glob("[!.]*"):
            assert path.read_text() == (tmp_path / "whole" / "store" / path.name).read_text()
        init(work)
        assert {p.name for p in (work / "store").glob("[!.]*")} == {
            p.name for p in (tmp_path / "whole" / "store").iterdir()
        }


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", VERBS if IS_ALL else ON_BUCKET)
def test_killed_at_a_request(name: str, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket's content is then copied to a folder, and the verb is called again there: that needs no requests."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # a killed process does not retry
    verb, template = VERBS[name], Place(tmp_path, s3.new_url())

    def as_folder(url: str) -> Place:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        s3.download(url, tmp_path / "store")
        return Place(tmp_path)

    (tmp_path / "store").mkdir()
    verb.begin(template)
    before = counting_trials(as_folder(template.url).store)
    whole = Place(tmp_path, s3.copy(template.url))
    s3.reset()
    verb.call(whole)
    count = s3.counts().total()
    verb.call(whole)
    after = state(as_folder(whole.url).store)
    selected = points(count)
    for answer_lost in (False, True):
        for point in selected:
            url = s3.copy(template.url)
            with on_bucket(s3, point, answer_lost=answer_lost), contextlib.suppress(Killed):
                verb.call(Place(tmp_path, url))
            where = f"request {point} of {count}, {'its answer lost' if answer_lost else 'before it'}"
            place = as_folder(url)
            assert counting_trials(place.store) >= before - verb.removes, f"lost at {where}"
            verb.call(place)
            assert state(place.store) == after, where
            s3.drop(url)
    print(f"{name}: killed at {len(selected)} of {count} requests, before it and with its answer lost")
