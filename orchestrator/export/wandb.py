"""Export a sweep's trials as offline runs of Weights & Biases. The client is imported on use.

A run has the trial's id, its parameters as config, and its metrics by step. `wandb sync` uploads it and replaces an existing
run of the trial.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import CommittedRun, ExportedSweep, Exporter

MARK = "depthrate-attempt"
"""Name of the file that marks a complete run and contains its attempt id."""


def _export(sweep: ExportedSweep, place: str) -> str:
    import wandb

    folder = Path(place)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new, old = write_offline_runs(folder, sweep.name, sweep.runs())
    except (wandb.Error, OSError) as error:
        raise UsageError(f"cannot write W&B runs to {folder}: {error}") from None
    existing = f" ({old} already present)" if old else ""
    upload = f"Upload: wandb sync {folder}/wandb/offline-run-*"
    return f"wrote {new} runs of project {sweep.name!r} to {folder}{existing}. {upload}"


def write_offline_runs(folder: Path, project: str, trials: Iterable[CommittedRun]) -> tuple[int, int]:
    """Write one run per trial below `folder/wandb`, replacing incomplete runs and runs of older attempts.

    Returns:
        Number of new runs, and number of existing runs.
    Raises:
        ImportError: wandb is not installed.
        wandb.Error: The client fails.
        OSError: The folder cannot be written.
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
        x_disable_stats=True,  # the exporting machine trained nothing
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    new = old = 0
    try:
        for trial in trials:
            existing = sorted((folder / "wandb").glob(f"offline-run-*-{trial.trial_id}"))
            if any(_attempt(run) == trial.attempt_id for run in existing):
                old += 1
                continue
            for run in existing:
                shutil.rmtree(run)
            _write_run(folder, project, trial, settings)
            new += 1
    finally:
        wandb.teardown()  # stop the service process that writes the files
    return new, old


def _write_run(folder: Path, project: str, trial: CommittedRun, settings: object) -> None:
    import wandb

    run = wandb.init(
        dir=str(folder),
        project=project,
        id=trial.trial_id,
        name=trial.name,
        config={**trial.params, "depthrate.trial_id": trial.trial_id, "depthrate.attempt_id": trial.attempt_id},
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
    doc="Write offline W&B runs to a folder. Upload with wandb sync.",
    export=_export,
    library="the W&B client",
    install="pip install 'depthrate[wandb]'",
)
