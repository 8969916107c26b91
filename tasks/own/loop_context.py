"""What a task's context offers to a loop of the user's own; torch is imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from depthrate.tasks.own.loop import TrainingRun
    from depthrate.tasks.task import TaskContext


class TrainsByHand:
    """A context with `training`."""

    def training(self, model: Any, optimizer: Any, **others: Any) -> TrainingRun:
        """Return what keeps a loop over `run.steps(n)` going: `with context.training(model, optimizer) as run:`.

        Others, such as `scheduler=scheduler`, are saved and restored with model and optimiser.

        Raises:
            TypeError: one of them has no state_dict.
        """
        from depthrate.tasks.own.loop import TrainingRun

        return TrainingRun(cast("TaskContext", self), {"model": model, "optimizer": optimizer, **others})
