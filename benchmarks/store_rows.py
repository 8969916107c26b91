"""The measures of a store as rows: medians, growth over the next smaller store, ratios to another state or rival."""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

RIVALS = {"csv": 10_000, "tensorboard": 1_000, "mlflow": 1_000}
"""The most trials at which a rival answers within minutes."""


@dataclass
class Row:
    """One measure of one store."""

    trials: int
    place: str
    state: str
    """uncompacted, compacted, settled, or the rival's name."""
    measure: str
    unit: str
    values: list[float]
    growth: float | None = None
    """Median over that of the next smaller size."""
    ratios: dict[str, float] = field(default_factory=dict)
    """What is divided by what -> the quotient of their medians."""

    @property
    def median(self) -> float:
        """Return the figure to quote."""
        return statistics.median(self.values)

    def to_json(self) -> dict[str, Any]:
        """Return the row for programs."""
        return {**asdict(self), "median": self.median, "min": min(self.values), "max": max(self.values)}


def relate(rows: Sequence[Row]) -> None:
    """Fill in growths and ratios."""
    for row in rows:
        smaller = [other for other in rows if _series(other) == _series(row) and other.trials < row.trials]
        if smaller:
            row.growth = _quotient(row.median, max(smaller, key=lambda other: other.trials).median)
        for other in rows:
            if (other.trials, other.place, other.measure) != (row.trials, row.place, row.measure):
                continue
            if row.state in RIVALS and other.state not in RIVALS:
                row.ratios[f"ours {other.state} : {row.state}"] = _quotient(other.median, row.median)
            elif row.state != other.state == "uncompacted":
                row.ratios[f"{row.state} : uncompacted"] = _quotient(row.median, other.median)


def _series(row: Row) -> tuple[str, str, str]:
    return row.place, row.state, row.measure


def _quotient(above: float, below: float) -> float:
    return above / below if below else math.nan


def print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    heads = ("trials", "place", "state", "measure", "median", "min", "max", "unit", "runs", "growth", "ratio")
    table = Table(*heads, title="growth: over the next smaller store; ratio: to the uncompacted store, or ours : rival")
    for row in rows:
        ratios = [
            f"{_number(value)} ({name.partition(' : ')[0]})" if row.state in RIVALS else _number(value)
            for name, value in row.ratios.items()
        ]
        table.add_row(
            f"{row.trials:,}",
            row.place,
            row.state,
            row.measure,
            *(_number(value) for value in (row.median, min(row.values), max(row.values))),
            row.unit,
            str(len(row.values)),
            _number(row.growth),
            "\n".join(ratios),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
