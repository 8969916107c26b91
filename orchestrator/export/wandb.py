"""A sweep's trials as offline runs of Weights & Biases, through its own client; imported when it is asked for.

A run has the trial's identity, its parameters as its config, and its metrics step by step; `wandb sync` uploads it, over the
run of that trial that is there already.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import CommittedRun, ExportedSweep, Exporter
from depthrate.orchestrator.export.mlflow import ATTEMPT_TAG, TRIAL_TAG

MARK = "depthrate-attempt"
"""The file beside a run's own that is written when it is whole, and says which attempt it is of."""


def _export(sweep: ExportedSweep, place: str | None) -> str:
    import wandb

    folder = Path(str(place))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new, old = write_offline_runs(folder, sweep.name, sweep.runs())
    except (wandb.Error, OSError) as error:
        raise UsageError(f"cannot write runs of W&B to {folder}: {error}") from None
    existing = f"; {old} were there" if old else ""
    upload = f"upload them: wandb sync {folder}/wandb/offline-run-*"
    return f"wrote {new} runs of project {sweep.name!r} to {folder}{existing}; {upload}"


def write_offline_runs(folder: Path, project: str, trials: Iterable[CommittedRun]) -> tuple[int, int]:
    """Write a run a trial below `folder/wandb` and return how many are new, and how many were there.

    A run of an older attempt is replaced, and one that was not written to its end.

    Raises:
        ImportError: wandb is not installed.
        wandb.Error: it refuses.
        OSError: the folder cannot be written.
    """
    import wandb

    settings = wandb.Settings(
        mode="offline",
        console="off",
        silent=True,
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        x_disable_stats=True,  # of the machine that exports, which trained nothing
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    new = old = 0
    try:
        for trial in trials:
            there = sorted((folder / "wandb").glob(f"offline-run-*-{trial.trial_id}"))
            if any(_attempt(run) == trial.attempt_id for run in there):
                old += 1
                continue
            for run in there:
                shutil.rmtree(run)
            _write_run(folder, project, trial, settings)
            new += 1
    finally:
        wandb.teardown()  # ends its service, a process that writes the files
    return new, old


def _write_run(folder: Path, project: str, trial: CommittedRun, settings: object) -> None:
    import wandb

    run = wandb.init(
        dir=str(folder),
        project=project,
        id=trial.trial_id,
        name=trial.name,
        config={**trial.params, TRIAL_TAG: trial.trial_id, ATTEMPT_TAG: trial.attempt_id},
        settings=settings,  # type: ignore[arg-type]
        reinit="create_new",
    )
    for step, values in trial.steps:
        run.log({**values, "_timestamp": trial.ended_at}, step=step)
    run.finish()
    (Path(run.dir).parent / MARK).write_text(trial.attempt_id)


def _attempt(run: Path) -> str | None:
    try:
        return (run / MARK).read_text()
    except OSError:
        return None


WANDB = Exporter(
    name="wandb",
    doc="To offline runs of Weights & Biases below the folder TO; wandb sync uploads them.",
    export=_export,
    library="W&B's client",
    install="pip install 'depthrate[wandb]'",
)
