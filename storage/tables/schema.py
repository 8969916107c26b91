"""The tables' columns: standard columns, and columns declared by tasks, which the caller passes.

This module does not name any metric: the caller passes the measured columns as `Columns`. Every file has the standard columns
and the columns that its task declares or returned. A trials file has a column per parameter as well (`tables.parameters`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from depthrate.errors import InputError

SCHEMA_VERSION = 3
_REAL, _TEXT = pa.float64(), pa.string()

TRIALS = pa.schema(
    [
        ("trial_id", _TEXT),
        ("sweep", _TEXT),
        ("task", _TEXT),
        ("task_version", pa.int64()),
        ("attempt_id", _TEXT),
        ("pack_id", _TEXT),
        ("status", _TEXT),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("wall_s", _REAL),
        ("steps", pa.int64()),
        ("device", _TEXT),
        ("peak_memory_gb", _REAL),
        ("git_sha", _TEXT),
        ("git_dirty", pa.bool_()),
        ("versions", _TEXT),
        ("host", _TEXT),
        ("job_id", _TEXT),
        ("params", _TEXT),
        ("code_hash", _TEXT),
        ("engine", _TEXT),
    ]
)
"""Standard columns of trials. All other columns of a trials file are parameters."""
STATE_COLUMNS = ("trial_id", "attempt_id", "committed_at", "status", "wall_s", "code_hash")
"""Columns of trials for planning and monitoring. They omit the parameters, which take 50 MB for 100,000 trials."""
_KEY = [("trial_id", _TEXT), ("attempt_id", _TEXT), ("step", pa.int64())]
METRICS = pa.schema([*_KEY, ("split", _TEXT), ("layer", pa.int64()), ("is_last", pa.bool_())])
"""Columns of metrics without the measured ones, which are in `Columns`."""
CURVES = pa.schema([*_KEY, ("split", _TEXT)])
"""Columns of curves without the measured ones, which are in `Columns`."""
FEATURES = pa.schema(
    [
        *_KEY,
        ("layer", pa.int64()),
        ("kind", _TEXT),
        ("label", pa.int64()),
        ("sample_index", pa.int64()),
        ("feature", pa.list_(pa.float32())),
    ]
)
"""Columns as readers see them. In files, `feature` is a fixed-size list of float or halffloat with the network's width."""
FITS = pa.schema(
    [
        ("sweep", _TEXT),
        ("metric", _TEXT),
        ("x", _TEXT),
        ("by", _TEXT),
        ("model", _TEXT),
        ("exponent", _REAL),
        ("stderr", _REAL),
        ("ci_low", _REAL),
        ("ci_high", _REAL),
        ("ci_method", _TEXT),
        ("prefactor", _REAL),
        ("floor", _REAL),
        ("r2", _REAL),
        ("aicc", _REAL),
        ("weight", _REAL),
        ("n_points", pa.int64()),
        ("n_trials", pa.int64()),
        ("excluded", _TEXT),
        ("log_power", _REAL),
        ("profile_low", _REAL),
        ("profile_high", _REAL),
        ("p_half", _REAL),
        ("p_one", _REAL),
        ("target", _REAL),
        ("x_at_target", _REAL),
        ("x_at_low", _REAL),
        ("x_at_high", _REAL),
        ("n_unconverged", pa.int64()),
        ("layer", pa.int64()),
        ("filter", _TEXT),
        ("x_min", _REAL),
        ("p_lack_of_fit", _REAL),
        ("preferred", _TEXT),
        ("is_adequate", pa.bool_()),
        ("state", _TEXT),
        ("group_states", _TEXT),
        ("common_exponent", _REAL),
        ("common_low", _REAL),
        ("common_high", _REAL),
        ("p_common", _REAL),
        ("sensitivity", _TEXT),
        ("local_exponent", _REAL),
        ("local_low", _REAL),
        ("local_high", _REAL),
        ("over", _TEXT),
        ("n_seeds", pa.int64()),
        ("seed_spread", _REAL),
        ("exponent_moved", _REAL),
        ("exponent_could_move", _REAL),
        ("n_above_shallower", pa.int64()),
        ("bound_exponent", _REAL),
        ("bound_ratio", _REAL),
        ("bound_ratio_low", _REAL),
        ("bound_ratio_high", _REAL),
        ("variables", _TEXT),
        ("layer_fraction", _REAL),
        ("loss_function", _TEXT),
        ("huber", _REAL),
    ]
)
ATTEMPTS = pa.schema(
    [
        ("attempt_id", _TEXT),
        ("sweep", _TEXT),
        ("pack_id", _TEXT),
        ("trial_ids", pa.list_(_TEXT)),
        ("state", _TEXT),
        ("started_at", _REAL),
        ("heartbeat_at", _REAL),
        ("ended_at", _REAL),
        ("host", _TEXT),
        ("pid", pa.int64()),
        ("job_id", _TEXT),
        ("device", _TEXT),
        ("step", pa.int64()),
        ("num_steps", pa.int64()),
        ("trials_done", pa.int64()),
        ("engine", _TEXT),
        ("compile_s", _REAL),
        ("error_kind", _TEXT),
        ("error", _TEXT),
        ("traceback", _TEXT),
        ("checkpoints", pa.int64()),
        ("cpu_s", _REAL),
        ("gpu_share", _REAL),
    ]
)
ARROW_TYPE_BY_KIND = {"scalar": pa.float64(), "vector": pa.list_(pa.float64()), "matrix": pa.list_(pa.float32())}
"""Stored type of a measured column: a number, a list of numbers, or the concatenated rows of a matrix."""
MEASURED_TABLES = ("metrics", "curves")
"""Tables with measured columns."""
_STRUCTURE = {"trials": TRIALS, "metrics": METRICS, "curves": CURVES, "features": FEATURES}


class TableError(InputError):
    """A task returned or declared a value that the tables do not support."""


Kinds = Mapping[str, Mapping[str, str]]
"""Table (metrics, curves) -> measured column -> kind, a key of ARROW_TYPE_BY_KIND."""


@dataclass(frozen=True)
class Columns:
    """The measured columns of a store's tables."""

    standard: Kinds = field(default_factory=dict)
    """Columns of every file. They are null where a trial has no value."""
    own: Kinds = field(default_factory=dict)
    """Columns that a task declares. Only its files have them."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> kind, a key of `tables.parameters.TYPE_BY_KIND`, as far as the task declares them."""
    always_last: Collection[str] = ()
    """Curves named last_<name> in `results` of every store, because a parameter has the plain name."""
    complete: Collection[str] = ()
    """Tasks that log a row with all their curves at each step at which they measure."""
    nulls: Callable[[str], Mapping[str, str]] = lambda task: {}
    """Function from a task to parameter -> SQL over other parameters for the value used in place of null."""

    def __post_init__(self) -> None:
        """Check that no column has two meanings.

        Raises:
            TableError: A column has two meanings. The message names it.
        """
        standard = {name for kinds in self.standard.values() for name in kinds}
        names_in_sql = {*TRIALS.names, *METRICS.names, *map(str.casefold, standard)}
        for table, columns in self.own.items():
            for name, kind in columns.items():
                if name.casefold() in names_in_sql and name not in standard:
                    raise TableError(f"column {name!r} exists in every table. Rename the metric.")
                builtin = {of: measured[name] for of, measured in self.standard.items() if name in measured}
                if builtin and builtin != {table: kind}:
                    ((of, is_kind),) = builtin.items()
                    raise TableError(
                        f"column {name!r} of {table} is declared as a {kind}, but in {of} it is a {is_kind} of a built-in "
                        "task. Rename the metric."
                    )

    @cached_property
    def schemas(self) -> dict[str, pa.Schema]:
        """Table -> the columns of each of its files."""
        added = {
            table: [(name, ARROW_TYPE_BY_KIND[kind]) for name, kind in kinds.items()]
            for table, kinds in self.standard.items()
        }
        return {table: pa.schema([*always, *added.get(table, ())]) for table, always in _STRUCTURE.items()}

    def missing(self, table: str, num_rows: int) -> Mapping[str, pa.Array]:
        """Return column -> nulls for all columns of this task's files."""
        length, nulls = self._missing.get(table, (-1, {}))
        if length != num_rows:  # most trials have the same number of rows as the previous one
            types = {column.name: column.type for column in self.schemas[table]} | self.custom_types(table)
            nulls = {name: pa.nulls(num_rows, kind) for name, kind in types.items()}
            self._missing[table] = num_rows, nulls
        return nulls

    @cached_property
    def _missing(self) -> dict[str, tuple[int, dict[str, pa.Array]]]:
        return {}

    def custom_types(self, table: str) -> dict[str, pa.DataType]:
        """Return the declared columns of a table that are not in every file, with their types."""
        names = self.schemas[table].names
        return {name: ARROW_TYPE_BY_KIND[kind] for name, kind in self.own.get(table, {}).items() if name not in names}

    def not_standard(self, table: str, columns: pa.Schema) -> dict[str, str]:
        """Return the columns that are not in every file, with their types' names."""
        names = self.schemas[table].names
        return {column.name: str(column.type) for column in columns if column.name not in names}


def empty_trials(columns: Sequence[str] = TRIALS.names) -> pa.Table:
    """Return an empty table of trials (schema.empty_table() would import pandas)."""
    return pa.Table.from_batches([], pa.schema([TRIALS.field(name) for name in columns]))


def row_keys(trials: pa.Table) -> Iterator[tuple[str, str]]:
    """Yield the (trial, attempt) of each row."""
    return zip(trials["trial_id"].to_pylist(), trials["attempt_id"].to_pylist(), strict=True)


def concat_rows(parts: Sequence[pa.Table]) -> pa.Table:
    """Concatenate tables. A column that only some of them have, for example from newer versions, is null in the other tables.

    Raises:
        pa.ArrowException: A column has two types.
    """
    alike = all(part.schema.equals(parts[0].schema) for part in parts)
    return pa.concat_tables(parts, promote_options="none" if alike else "default")


def as_attempts(table: pa.Table) -> pa.Table:
    """Return a file's rows with the columns of `ATTEMPTS`, followed by its other columns.

    Raises:
        KeyError: A column is missing.
    """
    return table.select([*ATTEMPTS.names, *(name for name in table.column_names if name not in ATTEMPTS.names)])


def as_trials(table: pa.Table, columns: Sequence[str] | None = TRIALS.names) -> pa.Table:
    """Return a file's rows with some columns of `TRIALS`, or with None all of them and the parameters.

    Raises:
        KeyError, pa.ArrowException: A column is missing or has another type.
    """
    standard = TRIALS.names if columns is None else columns
    parameters = [] if columns is not None else [name for name in table.column_names if name not in TRIALS.names]
    table = table.select([*standard, *parameters]).replace_schema_metadata(None)
    wanted = pa.schema([*empty_trials(standard).schema, *(table.schema.field(name) for name in parameters)])
    return table if table.schema.equals(wanted) else table.cast(wanted)  # cast requires an import
