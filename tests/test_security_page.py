"""The security page names a test for each line, and each of them is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/security.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| what |")]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def test_each_line_names_a_test_that_is_there() -> None:
    assert len(NAMED) == len(ROWS) >= 20
    for path, name in NAMED:
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{path}::{name}"


def test_the_page_is_in_the_contents() -> None:
    contents = re.search(r"```\{toctree\}(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    assert contents is not None and "security" in contents[1].split()
