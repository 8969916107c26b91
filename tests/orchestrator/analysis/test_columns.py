"""The names of columns in `results` that no store's trials change."""

from depthrate.orchestrator.analysis.columns import ALWAYS_LAST, builtin_columns, result_columns
from depthrate.tasks.registry import builtin_task_names, registered_task


def test_curves_named_like_parameters_come_last() -> None:
    parameters = {name for task in builtin_task_names() for name in registered_task(task).schema}
    assert set(builtin_columns().standard["curves"]) & parameters == set(ALWAYS_LAST)


def test_sweep_columns_equal_result_columns() -> None:
    of_collapse, of_regression = (result_columns(registered_task(name)) for name in ("collapse", "regression"))
    assert of_collapse is not None and of_regression is not None
    assert of_collapse["loss"] == "varchar" and of_collapse["last_loss"] == of_regression["last_loss"] == "double"
    assert "loss" not in of_regression and of_regression["lr"] == of_regression["last_lr"] == "double"
    assert "steps" not in of_collapse and of_collapse["param_steps"] == "bigint"
