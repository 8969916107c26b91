"""The pictures of the docs are taken from pages without errors, and show something."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_pictures_of_pages_are_taken(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    specification = importlib.util.spec_from_file_location("screenshots", ROOT / "docs/screenshots.py")
    assert specification is not None and specification.loader is not None
    screenshots = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(screenshots)
    sweep = screenshots.SWEEP | {"grid": {"depth": [2, 3, 5], "width": [8], "weight_decay": [0.001, 0.01]}}
    sweep["params"] = sweep["params"] | {"samples_per_class": 2, "steps": 20}
    (tmp_path / "images").mkdir()
    errors = screenshots.take(tmp_path, sweep, tmp_path / "images")
    assert not any(errors.values()), errors
    for name in errors:
        taken = image.open(tmp_path / "images" / name)
        assert len(taken.convert("RGB").getcolors(1 << 20)) > 20, f"{name} is empty"
    committed = {path.name for path in (ROOT / "docs/images").glob("*.png")}
    assert committed == set(errors), "python -m docs.screenshots takes the pictures that the docs show"
