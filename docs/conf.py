"""Configuration of the documentation site: `sphinx-build -W docs build/docs`."""

import shutil
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import declared

project = "depthrate"
release = version_of("depthrate")
extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinx_copybutton", "sphinx_design"]
IMAGES = ("images", "atlas/images")
"""Folders of images that pages use in HTML elements, one for dark and one for light pages. Sphinx does not copy them itself."""
exclude_patterns = [*IMAGES, "atlas/store"]

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block", "colon_fence", "dollarmath"]
smartquotes = False  # --option stays --option

html_theme = "furo"
html_title = "depthrate"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["tables.css"]


def setup(app: Any) -> None:
    """Write the generated pages, and register the generated tables and the copying of images."""
    declared.write_pages(Path(__file__).parent)
    app.connect("source-read", _insert_tables)
    app.connect("build-finished", _copy_images)


def _insert_tables(app: Any, page: str, source: list[str]) -> None:
    source[0] = declared.expand(source[0])


def _copy_images(app: Any, error: Exception | None) -> None:
    for folder in IMAGES if error is None else ():
        shutil.copytree(Path(__file__).parent / folder, Path(app.outdir) / folder, dirs_exist_ok=True)
