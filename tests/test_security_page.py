"""docs/security.toml names a test for each attack, and each test exists."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKS = tomllib.loads((ROOT / "docs/security.toml").read_text())["check"]


def test_each_attack_names_an_existing_test() -> None:
    assert len(CHECKS) >= 20
    for check in CHECKS:
        assert check.keys() == {"attack", "defence", "test"}
        path, name = check["test"].split("::")
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, check["test"]
