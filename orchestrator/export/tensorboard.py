"""Export TensorBoard event files with tensorboardX, imported on use."""

from collections.abc import Iterable
from pathlib import Path

from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.export.exporter import ExportedSweep, Exporter, Scalars


def _export(sweep: ExportedSweep, place: str) -> str:
    """Write one event file per committed trial, replacing earlier ones."""
    folder = Path(place)
    written = 0
    try:
        for run in sweep.runs():
            if not run.steps:
                continue
            run_folder = folder / sweep.name / run.name
            run_folder.mkdir(parents=True, exist_ok=True)
            path = run_folder / f"events.out.tfevents.{int(run.ended_at)}.{run.trial_id}"
            write_events(path, run.ended_at, run.steps)
            for other in run_folder.glob(f"events.out.tfevents.*.{run.trial_id}"):
                if other != path:  # from a removed commit: TensorBoard would show both as one curve
                    other.unlink()
            written += 1
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error}") from None
    if not written:
        raise UsageError(f"sweep {sweep.name!r} has no committed trials with curves or metrics. Run it first.")
    return f"wrote {written} runs to {folder}. View: tensorboard --logdir {folder}"


def write_events(path: Path, written_at: float, steps: Iterable[Scalars]) -> None:
    """Write an event file: the version, then one event per step.

    Raises:
        ImportError: tensorboardX is not installed.
        OSError: The file cannot be written.
    """
    from tensorboardX import RecordWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    writer = RecordWriter(str(path))
    writer.write(Event(wall_time=written_at, file_version="brain.Event:2").SerializeToString())
    for step, values in steps:
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        event = Event(wall_time=written_at, step=step, summary=Summary(value=scalars))
        writer.write(event.SerializeToString())
    writer.close()


TENSORBOARD = Exporter(
    name="tensorboard",
    doc="Write TensorBoard event files to a folder. Default for a folder.",
    export=_export,
    takes=lambda place: "://" not in place,
    library="tensorboardX",
    install="pip install 'depthrate[tensorboard]'",
)
