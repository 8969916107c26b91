"""Old names: each still works, and warns with the name to use."""

import json

import pytest
from click.testing import CliRunner

import depthrate
from depthrate import deprecated
from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.app import COMMANDS, app
from depthrate.orchestrator.executors.options import LaunchOptions
from depthrate.orchestrator.executors.registry import make_launch_options
from depthrate.storage.files.store import Store
from depthrate.tasks.manual_training import ManualTraining
from tests.support.tests_rows import commit


@pytest.mark.parametrize("old", deprecated.CLASSES)
def test_old_classes(old: str) -> None:
    new = deprecated.CLASSES[old]
    with pytest.warns(DeprecationWarning, match=f"depthrate.{old} is deprecated, use depthrate.{new}"):
        assert getattr(depthrate, old) is getattr(depthrate, new)
    assert old not in depthrate.__all__


def test_old_functions_and_arguments() -> None:
    with pytest.warns(DeprecationWarning, match=r"depthrate\.load_sweep is deprecated, use depthrate\.load"):
        spec = depthrate.load_sweep("quickstart")
    with pytest.warns(
        DeprecationWarning, match=r"load\(given=\.\.\.\) is deprecated, use load\(sweep=\.\.\.\)"
    ) as caught:
        sweep = depthrate.load(given="quickstart")
    assert sweep.spec() == spec.spec() and caught[0].filename == __file__


def test_old_methods(folder: Store) -> None:
    class Context(ManualTraining):
        def report_engine(self, engine: str) -> str:
            return engine

    with pytest.warns(DeprecationWarning, match=r"context\.runs_as is deprecated, use context\.report_engine"):
        assert Context().runs_as("eager") == "eager"
    commit(folder, "a", ["t1"])
    results = results_of(folder)
    (sweep,) = results.membership().of_sweep
    with pytest.warns(DeprecationWarning, match=r"Results\.of is deprecated, use Results\.for_sweep"):
        assert results.of(sweep).sql("select count(*) from trials").fetchall() == [(1,)]


def test_old_launch_options() -> None:
    options = make_launch_options("s", {"keep_results": True, "code_version": "abc", "checkpoint_seconds": 7.0})
    for old, new in deprecated.LAUNCH_OPTIONS.items():
        with pytest.warns(DeprecationWarning, match=f"LaunchOptions.{old} is deprecated, use LaunchOptions.{new}"):
            assert getattr(options, old) == getattr(options, new)
    renamed = {new: old for old, new in deprecated.LAUNCH_OPTIONS.items()}
    stored = {renamed.get(name, name): value for name, value in json.loads(options.to_json()).items()}
    assert {"accept_code", "probe", "code"} <= stored.keys()
    assert LaunchOptions.from_json(json.dumps(stored)) == LaunchOptions.from_json(options.to_json())
    with (
        pytest.warns(DeprecationWarning, match="option accept_code is deprecated, use keep_results") as caught,
        pytest.raises(ValueError, match="--rerun and --keep-results are mutually exclusive"),
    ):
        depthrate.load("quickstart").run(rerun=True, accept_code=True)
    assert caught[0].filename == __file__
    with (
        pytest.warns(DeprecationWarning, match="option code is deprecated, use code_version"),
        pytest.raises(ValueError, match="no store at"),
    ):
        depthrate.load("quickstart").plan("nowhere", code="abc")


@pytest.mark.parametrize("old", deprecated.COMMANDS)
def test_old_commands(old: str) -> None:
    new = deprecated.COMMANDS[old]
    result = CliRunner().invoke(app, [old, "--help"])
    assert result.exit_code == 0 and result.stderr == f"warning: {old} is deprecated, use {new}\n"
    assert result.stdout.replace(old, new) == CliRunner().invoke(app, [new, "--help"]).stdout
    assert new in COMMANDS and old not in CliRunner().invoke(app, ["--help"]).output


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [(command, old, new) for command, flags in deprecated.FLAGS.items() for old, new in flags.items()],
)
def test_old_flags(command: str, old: str, new: str) -> None:
    helped = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).stdout
    assert f"{new} " in helped and f"{old} " not in helped
    answers = []
    for flag in (old, new):
        for words in ([flag, "\0"], [f"{flag}=\0"], [flag]):
            answers.append(CliRunner().invoke(app, [command, *words, "--no-such-option"]))
    for before, now in zip(answers[:3], answers[3:], strict=True):
        warning = f"warning: {old} is deprecated, use {new}\n"
        assert (before.exit_code, before.stdout) == (now.exit_code, now.stdout) and before.exit_code == 2
        assert before.stderr == warning + now.stderr and "deprecated" not in now.stderr


def test_an_argument_that_looks_like_an_old_flag_is_kept() -> None:
    assert deprecated.rename_flags("compact", ["--", "--grace"]) == ["--", "--grace"]
    assert deprecated.rename_flags("nodes", ["--grace", "1"]) == ["--grace", "1"]
