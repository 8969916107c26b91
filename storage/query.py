"""Read a store: SQL over its views, pandas and Arrow out. Read-only by construction."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from storage.files import Files, StoreError, default_store
from storage.layout import DATA_TABLES
from storage.schema import ATTEMPTS, CURVES, FITS, METRICS, STANDARD, TRIALS
from storage.snapshot import Problem, Snapshot, find_broken_files, first_line, read_states, take_snapshot

if TYPE_CHECKING:
    import numpy as np

VIEWS = ("trials", "metrics", "curves", "features", "attempts", "fits", "results")


class QueryError(ValueError):
    """An SQL query that DuckDB refuses."""


def open_results(url: str | None = None) -> Results:
    """Open a store for reading.

    Raises:
        StoreError: there is no store at `url`.
    """
    files = Files(url or default_store())
    if files.is_local and not os.path.isdir(files.root):
        raise StoreError(f"there is no store at {files.url!r}; run a sweep first, or name its place with --store")
    return Results(files)


class Results:
    """The committed results of a store, as they were when it was opened."""

    def __init__(self, files: Files, snapshot: Snapshot | None = None):
        self.files = files
        self._reset(snapshot or take_snapshot(files))

    @property
    def problems(self) -> list[Problem]:
        """Files that are not what they should be; nothing in them is counted."""
        return self.snapshot.problems

    def refresh(self) -> Results:
        """See what has been committed since, and return self."""
        self._reset(take_snapshot(self.files))
        return self

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Return a DuckDB relation (.df(), .arrow(), .fetchall()) over the views.

        Raises:
            QueryError: the query is not understood, or tries to do anything but read the views.
        """
        try:
            return self._relation(query)
        except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.DataError) as error:
            raise QueryError(f"{first_line(error)}; views: {', '.join(VIEWS)}") from None
        except (pa.ArrowException, OSError, duckdb.Error) as error:
            broken = find_broken_files(self.files, self.snapshot)
            if not broken:
                raise QueryError(first_line(error)) from None
        self._reset(take_snapshot(self.files, ignore=broken))
        try:
            return self._relation(query)
        except (pa.ArrowException, OSError, duckdb.Error) as error:
            raise QueryError(first_line(error)) from None

    def features(self, trial_id: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (labels [N], features [N, d]) of one trial at one layer, reading that layer alone.

        Raises:
            KeyError: the trial has no features there (its sweep asked for none, or it is not committed).
        """
        attempts = [
            row["attempt_id"]
            for row in self.snapshot.trials.select(["trial_id", "attempt_id"]).to_pylist()
            if row["trial_id"] == trial_id
        ]
        for file in self.snapshot.files["features"]:
            if any(attempt in file.path for attempt in attempts):
                found = _read_layer(self.files, file.path, trial_id, layer)
                if found is not None:
                    return found
        raise KeyError(
            f"no features of trial {trial_id!r} at layer {layer} in {self.files.url}; "
            "ask for them with `features: all` (or class_means, sample:<n>) in the sweep"
        )

    def _reset(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._trials = _with_parameter_columns(snapshot.trials)

    def _relation(self, query: str) -> duckdb.DuckDBPyRelation:
        statements = duckdb.extract_statements(query)
        if len(statements) != 1 or statements[0].type not in (
            duckdb.StatementType.SELECT,
            duckdb.StatementType.EXPLAIN,
        ):
            raise QueryError("give one SELECT; the store is read-only")
        # A connection for each query: one with an unread result refuses the next query.
        connection = duckdb.connect(":memory:")
        # SQL reaches the registered views and nothing else: no files, no Python variables, no settings.
        connection.execute("set python_enable_replacements = false")
        connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        named = [name for name in VIEWS if re.search(rf"\b{name}\b", query, re.IGNORECASE)]
        self._create_views(connection, named, set())
        return connection.sql(query).materialize()  # runs it here, where a damaged file can still be left out

    def _create_views(self, connection: duckdb.DuckDBPyConnection, names: Iterable[str], created: set[str]) -> None:
        """Create the views a query names and those they rest on: opening the others would cost start-up time."""
        for name in names:
            if name in created:
                continue
            created.add(name)
            if name == "trials":
                connection.register("trials", self._trials)
            elif name in DATA_TABLES:
                self._create_views(connection, ["trials"], created)
                connection.register(f"written_{name}", self._dataset(name))
                # A losing attempt's rows may stand in a file whose other rows count: match trial and attempt.
                connection.execute(
                    f"create view {name} as select written.* from written_{name} as written semi join trials "
                    "on written.trial_id = trials.trial_id and written.attempt_id = trials.attempt_id"
                )
            elif name == "results":
                self._create_views(connection, ["trials", "metrics", "curves"], created)
                connection.execute(self._results_view())
            elif name == "fits":
                connection.register("fits", self._fits())
            elif name == "attempts":
                connection.register("attempts", self._attempts())

    def _dataset(self, name: str) -> Any:
        """Return a table's files as an Arrow dataset with a known schema: opening it reads no footer."""
        files = self.snapshot.files[name]
        schema = pa.schema([*STANDARD[name], *self._own_columns(name).items()])
        if not files:
            return pa.Table.from_batches([], schema)
        import pyarrow.dataset as ds  # imports pandas: half a second that trials and fits alone do not need
        from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

        filesystem = LocalFileSystem() if self.files.is_local else PyFileSystem(FSSpecHandler(self.files.fs))
        options = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        return ds.FileSystemDataset.from_paths(
            [self.files.full_path(file.path) for file in files],
            schema=schema,
            format=ds.ParquetFileFormat(default_fragment_scan_options=options),
            filesystem=filesystem,
        )

    def _own_columns(self, name: str) -> dict[str, pa.DataType]:
        """Return the tasks' own columns of a table; one with two types in two tasks is left out and reported."""
        types: dict[str, set[str]] = {}
        for file in self.snapshot.files[name]:
            for column, text in file.own_columns.items():
                types.setdefault(column, set()).add(text)
        for column, texts in types.items():
            problem = Problem(
                f"{name}.{column}", f"has the types {sorted(texts)} in different tasks; rename one of them"
            )
            if len(texts) > 1 and problem not in self.problems:
                self.problems.append(problem)
        return {column: _OWN_TYPES[texts.copy().pop()] for column, texts in types.items() if len(texts) == 1}

    def _results_view(self) -> str:
        """One row a trial: parameters, and what was measured at its last step at the last layer, on the training split.

        A parameter named like a metric becomes param_<name>; a curve named like a parameter becomes last_<name>.
        """
        parameters = self._trials.schema.names[len(TRIALS) :]
        metrics = [n for n in METRICS.names if n not in ("trial_id", "attempt_id", "is_last")] + list(
            self._own_columns("metrics")
        )
        curves = [n for n in CURVES.names if n not in METRICS.names] + list(self._own_columns("curves"))
        first = ("trial_id", "sweep", "task", "status")
        columns = [f't."{name}"' for name in first]
        columns += [f't."{name}"' + (f' as "param_{name}"' if name in metrics else "") for name in parameters]
        columns += [f'm."{name}"' for name in metrics if name not in first]
        columns += [
            f'c."{name}"' + (f' as "last_{name}"' if name in parameters else "")
            for name in curves
            if name not in (*metrics, *first)
        ]
        columns += [f"t.{name}" for name in ("wall_s", "device", "host", "committed_at")]
        return (
            f"create view results as select {', '.join(columns)} from trials t left join ("
            "select * from metrics where is_last qualify row_number() over "
            "(partition by trial_id order by step desc, split <> 'train', split, layer desc) = 1"
            ") m on m.trial_id = t.trial_id left join curves c "
            "on c.trial_id = t.trial_id and c.step = m.step and c.split = m.split"
        )

    def _fits(self) -> pa.Table:
        tables = [pa.Table.from_batches([], FITS)]
        for path in self.files.list("fits"):
            try:
                with pq.ParquetFile(io.BytesIO(self.files.read(path))) as parquet:
                    tables.append(parquet.read().select(FITS.names).cast(FITS))
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                self.problems.append(Problem(path, f"cannot be read ({first_line(error)}); fit the sweep again"))
        return pa.concat_tables(tables)

    def _attempts(self) -> pa.Table:
        states = read_states(self.files, self.snapshot.attempts)
        return pa.Table.from_pylist([{name: state.get(name) for name in ATTEMPTS.names} for state in states], ATTEMPTS)


_OWN_TYPES = {"double": pa.float64(), "string": pa.string(), "list<item: double>": pa.list_(pa.float64())}


def _with_parameter_columns(trials: pa.Table) -> pa.Table:
    """Return the trials with every parameter as a column; one named like a standard column becomes param_<name>."""
    rows = [json.loads(text) for text in trials["params"].to_pylist()]
    for name in dict.fromkeys(name for row in rows for name in row):
        column = f"param_{name}" if name in TRIALS.names else name
        trials = trials.append_column(column, _parameter_array([row.get(name) for row in rows]))
    return trials


def _parameter_array(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array(values, pa.float64())
    if len(kinds) <= 1 and kinds != {list}:
        return pa.array(values, pa.string() if not kinds else None)
    if kinds == {list} and all(isinstance(item, int | float) for value in values if value for item in value):
        return pa.array(values, pa.list_(pa.float64()))
    return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())


def _read_layer(files: Files, path: str, trial_id: str, layer: int) -> tuple[np.ndarray, np.ndarray] | None:
    import numpy as np

    with files.open(path) as file, pq.ParquetFile(file, page_checksum_verification=True) as parquet:
        metadata = parquet.metadata
        names = [metadata.row_group(0).column(i).path_in_schema for i in range(metadata.num_columns)]
        trial_column, layer_column = names.index("trial_id"), names.index("layer")

        def holds(group: int) -> bool:
            statistics = [
                metadata.row_group(group).column(column).statistics for column in (trial_column, layer_column)
            ]
            return statistics[0].min == trial_id and statistics[1].min == layer

        groups = [group for group in range(metadata.num_row_groups) if holds(group)]
        if not groups:
            return None
        table = parquet.read_row_groups(groups, columns=["label", "feature"]).combine_chunks()
    feature = table["feature"].combine_chunks()
    vectors = feature.flatten().to_numpy(zero_copy_only=False).reshape(len(feature), -1)
    return table["label"].to_numpy(), np.asarray(vectors)
