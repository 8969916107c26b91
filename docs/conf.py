"""The site of these pages: `sphinx-build -W docs build/docs`."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import declared

project = "depthrate"
release = version_of("depthrate")
extensions = ["myst_parser"]
IMAGES = ("images", "atlas/images")
"""Folders of pictures that pages name in HTML, which says which is for dark pages; Sphinx does not copy these by itself."""
exclude_patterns = [*IMAGES, "atlas/store"]

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
smartquotes = False  # --option stays --option

html_theme = "furo"
html_title = "depthrate"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["tables.css"]


def setup(app: Any) -> None:
    """Register the generated tables and the copying of pictures."""
    app.connect("source-read", _insert_tables)
    app.connect("build-finished", _copy_pictures)


def _insert_tables(app: Any, page: str, source: list[str]) -> None:
    source[0] = declared.expand(source[0])


def _copy_pictures(app: Any, error: Exception | None) -> None:
    for folder in IMAGES if error is None else ():
        shutil.copytree(Path(__file__).parent / folder, Path(app.outdir) / folder, dirs_exist_ok=True)
