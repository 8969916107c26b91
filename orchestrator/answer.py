"""The rows of a query: on the terminal, or as CSV, JSON or Parquet."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.show import print_table
from storage.export import write_csv, write_json, write_parquet

if TYPE_CHECKING:
    import duckdb


def print_answer(relation: duckdb.DuckDBPyRelation, format: str, console: Console) -> None:
    """Print rows to standard output."""
    if format == "table":
        print_table(console, relation.columns, relation.fetchall())
    elif format == "parquet":
        write_parquet(relation, sys.stdout.buffer)
    else:
        {"csv": write_csv, "json": write_json}[format](relation, sys.stdout)


def write_answer(relation: duckdb.DuckDBPyRelation, format: str, path: Path) -> None:
    """Write rows to a file, which is there whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if format == "parquet":
            with aside.open("wb") as binary:
                write_parquet(relation, binary)
        else:
            with aside.open("w", encoding="utf-8", newline="") as text:
                if format == "table":
                    print_table(Console(file=text, width=100_000), relation.columns, relation.fetchall())
                else:
                    {"csv": write_csv, "json": write_json}[format](relation, text)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
