"""The published JSON schema accepts what the pages teach, and a sweep file's loader and the schema refuse the same slips."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from depthrate.sweeps.errors import SweepError
from depthrate.sweeps.expand import expand
from depthrate.sweeps.json_schema import sweep_schema
from depthrate.sweeps.load import SHIPPED, parse_yaml, sweep_of_spec
from depthrate.tasks.registry import registered_tasks
from tests.support.here import printed

jsonschema = pytest.importorskip("jsonschema", reason="comes with nbclient of depthrate[dev]")

ROOT = Path(__file__).parents[2]
VALIDATOR = jsonschema.Draft202012Validator(sweep_schema(registered_tasks()))
BASE = {"name": "s", "task": "collapse"}
BUILTIN = BASE | {"params": {"arch": "rn1"}, "grid": {"depth": [2, 3]}}
OWN = BASE | {"params": {"arch": "./model.py:Net"}, "grid": {"depth": [2, 3]}}


def blocks() -> list[tuple[str, dict[str, Any]]]:
    """Return each YAML block of the pages that is a sweep, or a part of one, which is put into a whole one."""
    contents = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("[!r]*/*.md"))):
        for number, text in enumerate(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)):
            contents.append((f"{page.name} {number}", BASE | parse_yaml(text)))
    return contents


BLOCKS = blocks()


def says(content: dict[str, Any]) -> str:
    return "; ".join(error.message for error in VALIDATOR.iter_errors(content))


def changed(content: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the sweep with one more parameter, or another value of one."""
    content = copy.deepcopy(content)
    content.setdefault("params", {})[key] = value
    return content


def test_the_pages_have_sweeps() -> None:
    names = {name.split()[0] for name, _ in BLOCKS}
    assert names >= {"README.md", "own-model.md", "write-sweeps.md", "custom-tasks.md", "search.md", "analyse.md"}


@pytest.mark.parametrize("content", [content for _, content in BLOCKS], ids=[name for name, _ in BLOCKS])
def test_documented_sweeps_are_accepted(content: dict[str, Any]) -> None:
    assert says(content) == ""
    content = {key: value for key, value in content.items() if key != "base"}  # of files: test_base.py loads them
    assert sweep_of_spec(sweep_of_spec(content).spec()) == sweep_of_spec(content)


@pytest.mark.parametrize("content", [content for _, content in BLOCKS], ids=[name for name, _ in BLOCKS])
def test_slips_are_refused_by_both(content: dict[str, Any]) -> None:
    for key in ("gird", "fits"):
        assert f"'{key}' was unexpected" in says(content | {key: {}})
        with pytest.raises(SweepError, match=f"unknown key '{key}' in the sweep .did you mean"):
            sweep_of_spec(content | {key: {}})
    if ":" not in str(content.get("params")):  # a network or data of the user's may have any argument
        assert "'widht'" in says(changed(content, "widht", 8))
    assert says(changed(content, "batch_size", "large")), "also beside parameters of the user's own"


@pytest.mark.parametrize(
    "content",
    [
        changed(OWN, "layers", "blocks.*"),
        changed(OWN, "hidden", 8),
        changed(OWN, "width", "any word"),
        changed(OWN, "dataset", "./data.py:make"),
        changed(BUILTIN, "dataset", "mine.npz"),
        changed(BUILTIN, "dataset", "images/of/mine"),
        changed(changed(BUILTIN, "dataset", "./data.py:make"), "noise", 0.5),
        BASE | {"grid": {"arch": ["./model.py:Net"], "hidden": [2, 3]}},
        BASE | {"grids": [{"params": {"arch": "package.module:Net", "hidden": 2}}]},
        BASE | {"include": [{"arch": "./model.py:Net", "hidden": 2}]},
        OWN | {"task": "own"},
        BASE | {"task": "./my_task.py:power_law", "params": {"exponent": 0.5}},
        BUILTIN | {"derive": {"lr": "0.1 / depth"}, "zip": {"lr": {"linspace": [0, 1, 3]}}, "seeds": [1, 2]},
    ],
    ids=str,
)
def test_what_names_something_of_the_users_is_accepted(content: dict[str, Any]) -> None:
    assert says(content) == ""


@pytest.mark.parametrize(
    ("content", "piece"),
    [
        (changed(BUILTIN, "widht", 3), "'widht'"),
        (changed(BUILTIN, "layers", "blocks.*"), "'layers'"),
        (changed(OWN, "arch", "rn7"), "rn7"),
        (BUILTIN | {"grid": {"dpeth": [1]}}, "'dpeth'"),
        (BUILTIN | {"grid": {"depth": 2}}, "2 is not of type"),
        (BUILTIN | {"zip": {"width": ["wide"]}}, "wide"),
        (BUILTIN | {"grids": [{"params": {"widht": 3}}]}, "'widht'"),
        (BUILTIN | {"grids": [{"girds": {}}]}, "'girds'"),
        (BUILTIN | {"include": [{"dpeth": 3}]}, "'dpeth'"),
        (BUILTIN | {"exclude": [{"dpeth": 3}]}, "'dpeth'"),
        (BUILTIN | {"derive": {"wdith": "depth"}}, "'wdith'"),
        (BUILTIN | {"search": {"params": {"rl": [1]}, "objective": "nc1"}}, "'rl'"),
        (BUILTIN | {"search": {"params": {"lr": 3}, "objective": "nc1"}}, "3 is not valid"),
        (BUILTIN | {"search": {"params": {"lr": [1]}}}, "'objective' is a required property"),
        (BUILTIN | {"search": {"params": {"lr": [1]}, "objective": "nc1", "prune": {}}}, "'metric' is a required"),
        (BUILTIN | {"fit": [{"metric": "nc1", "weight": "equal"}]}, "'weight'"),
        (BUILTIN | {"figures": [{"kind": "share", "condition": "rank < 3", "x": "lr", "lines": {}}]}, "not valid"),
        (BUILTIN | {"task": "colapse"}, "colapse"),
        (BUILTIN | {"name": "a/b"}, "a/b"),
        ({"task": "collapse"}, "'name' is a required property"),
    ],
    ids=str,
)
def test_slips_are_refused(content: dict[str, Any], piece: str) -> None:
    assert piece in says(content)


def test_every_key_says_what_it_is() -> None:
    schema = VALIDATOR.schema
    parts = [schema, *(schema["$defs"][n] for n in ("Search", "Prune", "FinalRuns", "FitRequest", "FigureRequest"))]
    assert all("description" in value for part in parts for value in part["properties"].values())


def test_a_range_may_have_what_the_loader_reads() -> None:
    """The schema's word for it, an object, is all that it says of a range; the loader says the rest."""
    assert says(BUILTIN | {"grid": {"depth": {"range": [2, 4]}}}) == ""
    with pytest.raises(SweepError, match="expected one of range, linspace, logspace"):
        expand(sweep_of_spec(BUILTIN | {"grid": {"depth": {"steps": [2, 4]}}}))


def test_every_shipped_sweep_is_accepted() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="comes with nbclient of depthrate[dev]")
    schema = sweep_schema(registered_tasks())
    assert json.loads(printed("schema")) == schema
    validator = jsonschema.Draft202012Validator(schema)
    for path in SHIPPED.rglob("*.yaml"):
        assert not list(validator.iter_errors(yaml.safe_load(path.read_text()))), path
    assert len(printed("schema")) < 190_000, "each parameter stands there once"
