"""The sheet of a set of fits. Renderers show any sheet and know no statistics."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeAlias, TypeGuard

from depthrate.grouping import grouped


class Kind(StrEnum):
    """Kind of a column's values. A text in place of a number is the reason for its absence."""

    TEXT = "text"
    COUNT = "count"
    NUMBER = "number"
    P_VALUE = "p-value"
    INTERVAL = "interval"
    """A number with its interval."""


@dataclass(frozen=True)
class IntervalValue:
    """A number with its interval."""

    value: float
    low: float | None = None
    high: float | None = None
    """Ends of the interval. One that is missing is infinite, and without both there is no interval."""
    is_hollow: bool = False
    """Whether the values do not prefer the form of this number. Its symbol in a drawn interval is then hollow."""


Value: TypeAlias = str | int | float | IntervalValue | None


@dataclass(frozen=True)
class Column:
    """A column of a sheet."""

    key: str
    """Key of the values in rows."""
    heading: str
    """Heading, with markup."""
    kind: Kind = Kind.TEXT
    form: str = ".3f"
    """Format of numbers."""
    note: str = ""
    """Definition, with markup, shown with the column."""
    is_optional: bool = False
    """Whether the column is left out without values."""
    is_spare: bool = False
    """Whether the column is left out on a phone."""
    is_detail: bool = False
    """Whether the column is shown only with all details: `--wide`, or the report's evidence."""
    is_name: bool = False
    """Whether the column names the row."""

    @property
    def is_number(self) -> bool:
        """Whether the values are aligned to the right."""
        return self.kind not in (Kind.TEXT, Kind.INTERVAL)

    def text(self, value: Value) -> str:
        """Return a value as a text with markup, empty if it is missing."""
        if isinstance(value, IntervalValue):
            return f"**${number_text(value.value, self.form)}$** {interval_text(value.low, value.high, self.form)}".rstrip()
        if value is None or isinstance(value, str):
            return value or ""
        if self.kind is Kind.COUNT:
            return str(value)
        if not math.isfinite(value):
            return ""
        if self.kind is Kind.P_VALUE:
            return f"${p_text(value)}$"
        return f"${number_text(value, self.form)}$"


@dataclass(frozen=True)
class FitSheet:
    """Columns, rows and texts of a set of fits. All texts have markup."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Value]]
    headlines: Sequence[str] = ()
    """Counts of groups by their state, one per request with several groups."""
    sentences: Sequence[str] = ()
    """The rows in words."""
    remarks: Sequence[str] = ()
    """What the values do not decide, and what limits the results."""
    notes: Sequence[str] = ()
    """Definitions of columns and names."""
    details: Sequence[str] = ()
    """Explanations of columns with details."""
    grouped_by: str = ""
    """Column whose values are the titles of groups of rows."""

    @property
    def used(self) -> list[Column]:
        """Columns with a value, and those that are not optional."""
        return [
            column for column in self.columns
            if not column.is_optional or any(row.get(column.key) not in (None, "") for row in self.rows)
        ]  # fmt: skip

    @property
    def groups(self) -> list[tuple[str, "FitSheet"]]:
        """The rows by the titles of their groups, without the titles' column. One group without a title if none is named."""
        if not self.grouped_by:
            return [("", self)]
        columns = [column for column in self.columns if column.key != self.grouped_by]
        groups = grouped(self.rows, lambda row: str(row[self.grouped_by]))
        return [(title, replace(self, columns=columns, rows=rows, grouped_by="")) for title, rows in groups.items()]

    @property
    def column_notes(self) -> list[str]:
        """Definitions of the columns with values."""
        return [column.note for column in self.used if column.note]

    def pick(self, keys: Collection[str]) -> "FitSheet":
        """Return the sheet with some of its columns, in their order."""
        return replace(self, columns=[column for column in self.columns if column.key in keys])

    def cells(self, columns: Sequence[Column]) -> list[list[str]]:
        """Return the texts of each row."""
        return [[column.text(row.get(column.key)) for column in columns] for row in self.rows]


def is_finite(value: float | None) -> TypeGuard[float]:
    """Return whether a number is not None, infinite or NaN."""
    return value is not None and math.isfinite(value)


def number_text(value: float, form: str = ".3g") -> str:
    """Format a number. Zero has no sign."""
    return format(value, f"z{form}").removesuffix(".")


def p_text(p: float) -> str:
    """Format a p-value with three decimals, or as `< 0.001`."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(low: float | None, high: float | None, form: str = ".2f") -> str:
    """Format an interval, as in `$[0.41, 0.52]$`, with infinity for a missing end. Empty without both."""
    if not is_finite(low) and not is_finite(high):
        return ""
    ends = number_text(low, form) if is_finite(low) else "-∞", number_text(high, form) if is_finite(high) else "∞"
    return f"$[{', '.join(ends)}]$"
