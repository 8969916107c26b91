"""Fixtures for all tests: a clean environment, stores of every kind, a SLURM, a small sweep."""

import atexit
import gc
import itertools
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, settings

from depthrate.storage.files.store import Store
from tests.support.here import TINY
from tests.support.s3_server import S3Server, forget_s3_clients, s3_server
from tests.support.slurm_bench import Bench
from tests.support.slurm_lab import Lab, missing_programs

os.environ["OMP_NUM_THREADS"] = "1"  # before any import of torch: tests run side by side, and waiting threads spin
gc.disable()  # until all is imported: little of that is garbage
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # hundreds of processes would each compile every module
    sys.dont_write_bytecode = False

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

LONGEST_FIRST = (
    "orchestrator/executors/test_slurm_scenarios.py",
    "orchestrator/executors/test_executors.py",
    "orchestrator/executors/test_slurm_submission.py",
    "tasks/test_option_pairs.py",
    "tasks/native/codegen/test_survey.py",
    "orchestrator/executors/test_slurm_controller.py",
    "tasks/native/codegen/test_random_modules.py",
    "orchestrator/executors/test_slurm_campaign.py",
    "tasks/native/codegen/test_cuda.py",
    "tasks/native/test_transformers.py",
    "tasks/native/test_huggingface.py",
    "orchestrator/executors/test_ray.py",
    "test_atlas.py",
    "orchestrator/executors/test_slurm_surroundings.py",
    "orchestrator/cli/commands/test_stand_ins.py",
    "tasks/native/test_kernels.py",
    "tasks/native/test_build.py",
    "test_own_page.py",
    "orchestrator/launch/test_resume.py",
    "tasks/training/polish/test_stationary.py",
    "storage/test_chaos.py",
    "test_docs.py",
    "orchestrator/report/test_report.py",
)
"""Files that take a minute or more, those that wait for a scheduler between those that compute: a process that began one of
them last would keep the others waiting."""


LANES = ("slow", "ray", "slurm", "s3", "browser", "gpu")
"""Markers of tests that a developer does not wait for: `pytest` alone leaves them out, `pytest --all` runs everything."""
FAST = " and ".join(f"not {lane}" for lane in LANES)
"""Expression of the fast lane."""
ALONE = "alone"
"""Marker of tests that fail when others compute beside them: `pytest --rest` leaves them to `pytest -m alone`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --all and --rest."""
    parser.addoption("--all", action="store_true", help=f"also tests marked {', '.join(LANES)}")
    parser.addoption("--rest", action="store_true", help=f"only tests marked {', '.join(LANES)}, none marked {ALONE}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip and list tests not started by DEPTHRATE_TESTS_UNTIL, so that a run on a slow machine ends in time."""
    until = os.environ.get("DEPTHRATE_TESTS_UNTIL")
    if until is not None and time.time() > float(until):
        pytest.skip("the time for tests is over (DEPTHRATE_TESTS_UNTIL)")


def pytest_configure(config: pytest.Config) -> None:
    """Run the fast lane unless files, -m, -k or --all ask for more, and hand out files in the order above."""
    config.option.loadscopereorder = False
    if config.option.rest:
        config.option.markexpr = f"({' or '.join(LANES)}) and not {ALONE}"
    chosen = config.option.all or config.option.markexpr or config.option.keyword
    names_files = any(".py" in argument for argument in config.args)
    if not chosen and not names_files:
        config.option.markexpr = FAST


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose tests are all in a lane that does not run: their imports take seconds."""
    if config.option.markexpr != FAST or collection_path.suffix != ".py":
        return None
    mark = re.search(r"^pytestmark = (.*)$", collection_path.read_text(), re.MULTILINE)
    return True if mark and any(f"pytest.mark.{lane}" in mark[1] for lane in LANES) else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start one process more than there are cores: the one with the SLURM scenarios mostly waits for a scheduler."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish() -> None:
    """Leave the imported modules to no later garbage collection, of which each would go through all of them."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # duckdb calls what is frozen leaked
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and mark what needs a real SLURM or S3."""
    rank = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    for item in items:
        needs = {*getattr(item, "fixturenames", ()), *_parameters(item)}
        for fixture, marker in (("lab", "slurm"), ("s3", "s3")):
            if fixture in needs:
                item.add_marker(marker)


def _parameters(item: pytest.Item) -> list[str]:
    """Return the texts among a test's parameters, one of which may name a fixture."""
    call = getattr(item, "callspec", None)
    return [] if call is None else [value for value in call.params.values() if isinstance(value, str)]


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the folders of `clean_environment`."""
    return tmp_path_factory.mktemp("states")


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, states: Path) -> None:
    """Keep the user's own store, and what code that user accepted, out of the tests."""
    monkeypatch.delenv("DEPTHRATE_STORE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(states / f"{next(_numbers)}"))  # made by what needs it: most tests do not


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """What a test computes without a seed or a context is the same, whichever tests its process has run before."""
    if torch := sys.modules.get("torch"):
        from depthrate.tasks.training.computing import make_products_reproducible

        make_products_reproducible()
        torch.set_num_threads(1)
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    pytest.importorskip("moto.server", reason="needs pip install 'moto[server]'")
    pytest.importorskip("s3fs", reason="needs pip install s3fs")
    with s3_server() as server:
        forget_s3_clients()
        yield server
        forget_s3_clients()


@pytest.fixture
def s3(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A real S3 server, to which this process and those it starts are led by the usual environment variables."""
    for name, value in _s3_server.environment.items():
        monkeypatch.setenv(name, value)
    _s3_server.reset()
    return _s3_server


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind: what uses it is the suite that every kind has to pass."""
    if request.param == "s3":
        return Store(request.getfixturevalue("s3").new_url())
    return Store(str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}")


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    """An empty store in a folder."""
    return Store(str(tmp_path / "store"))


@pytest.fixture
def tiny_sweep(tmp_path: Path) -> Path:
    """A sweep file of four trials that train in a second."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A real SLURM with four nodes."""
    pytest.importorskip("submitit", reason="needs pip install 'depthrate[slurm]'")
    if missing := missing_programs():
        reason = "apt-get install slurm-wlm slurmdbd mariadb-server-core munge"
        pytest.skip(f"needs a real SLURM: {', '.join(missing)} not found ({reason})")
    lab = Lab(tmp_path_factory.mktemp("slurm"))
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


@pytest.fixture
def bench(lab: Lab, tmp_path: Path) -> Iterator[Bench]:
    """A sweep on that SLURM; what it leaves in the queue is cancelled."""
    yield (made := Bench(lab, tmp_path))
    if left := [job for job, _, _ in made.queue()]:
        lab.run("scancel", *left)
