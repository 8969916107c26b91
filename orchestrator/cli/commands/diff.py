"""`depthrate diff`: show the differences of two trials: parameters, versions, node, and code of the task."""

import json
from collections.abc import Mapping
from typing import Any

from depthrate.orchestrator.analysis.open_results import results_of
from depthrate.orchestrator.cli.options import declared, json_option, store_option, trial_argument
from depthrate.orchestrator.code.diff import unified_diff
from depthrate.orchestrator.console.errors import UsageError
from depthrate.orchestrator.console.tables import make_console, print_json, print_table
from depthrate.storage.catalog.code import read_code
from depthrate.storage.files.json_objects import parse_object
from depthrate.storage.files.store import Store, existing_store

_COLUMNS = (
    "trial_id, sweep, task, task_version, code_hash, git_sha, git_dirty, status, steps, device, host, committed_at, params, "
    "versions"
)


def _find_trial(rows: list[dict[str, Any]], prefix: str, store: Store) -> dict[str, Any]:
    matches = [row for row in rows if row["trial_id"].startswith(prefix)]
    if len(matches) != 1 or not prefix:
        names = ", ".join(row["trial_id"] for row in matches[:5])
        raise UsageError(
            f"{len(matches)} committed trials of {store.url} start with {prefix!r}"
            + (f": {names}" if matches else "")
            + '. List all: depthrate query "select trial_id from trials"'
        )
    return matches[0]


def _differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*first, *second])
    both = {name: (first.get(name), second.get(name)) for name in names}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _code_difference(store: Store, first: Mapping[str, Any], second: Mapping[str, Any]) -> tuple[list[str], str]:
    """Return the differing lines of two trials' code, and a note on the comparison."""
    hashes = [first["code_hash"], second["code_hash"]]
    if hashes[0] is not None and hashes[0] == hashes[1]:
        return [], f"the same, {hashes[0][:12]}"
    if None in hashes:
        return [], "not recorded for both (built-in tasks have a version instead, old records have neither)"
    contents = [read_code(store, code_hash) for code_hash in hashes]
    missing = [code_hash[:12] for code_hash, files in zip(hashes, contents, strict=True) if files is None]
    if missing:
        return [], f"{' and '.join(missing)} missing in the store, or corrupt"
    names = [code_hash[:12] for code_hash in hashes]
    return unified_diff(contents[0] or {}, contents[1] or {}, *names), f"{names[0]} and {names[1]} differ"


@declared(__doc__)
@trial_argument("first")
@trial_argument("second")
@store_option
@json_option
def command(first: str, second: str, store: str | None, json: bool) -> None:
    opened, console = existing_store(store), make_console()
    rows = results_of(opened).sql(f"select {_COLUMNS} from trials").to_arrow_table().to_pylist()
    one, other = (_find_trial(rows, prefix, opened) for prefix in (first, second))
    params, versions = (
        _differences(parse_object(one[name]), parse_object(other[name])) for name in ("params", "versions")
    )
    apart = {"trial_id", "params", "versions"}
    rest = _differences(*({name: row[name] for name in row if name not in apart} for row in (one, other)))
    code, note = _code_difference(opened, one, other)
    if json:
        parts = {"params": params, "versions": versions, "record": rest, "code": code, "code_note": note}
        print_json({"trials": [one["trial_id"], other["trial_id"]], **parts})
        return
    for title, differences in (("parameters", params), ("versions", versions), ("records", rest)):
        if differences:
            table = [[name, *map(_cell, values)] for name, values in differences.items()]
            print_table(console, [title, one["trial_id"], other["trial_id"]], table)
        else:
            console.print(f"{title}: the same")
    console.print(f"code: {note}")
    for line in code:
        console.print(line, soft_wrap=True)
