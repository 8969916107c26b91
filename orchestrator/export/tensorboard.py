"""TensorBoard's event files, through tensorboardX; imported when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

Scalars = tuple[int, Mapping[str, float]]
"""A step, and tag -> value at it."""


def write_events(path: Path, written_at: float, steps: Iterable[Scalars]) -> None:
    """Write an event file: its version, then an event a step.

    Raises:
        ImportError: tensorboardX is not installed.
        OSError: it cannot be written.
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
