"""The site of these pages: `sphinx-build -W docs build/docs`."""

from __future__ import annotations

import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

project = "depthrate"
release = version_of("depthrate")
extensions = ["declared", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images"]

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
default_role = "code"  # docstrings hold `names`, which reStructuredText would take for titles of books
add_module_names = False
smartquotes = False  # --option stays --option
autodoc_default_options = {"member-order": "bysource"}
autodoc_type_aliases = dict.fromkeys(("ArrayLike", "npt.ArrayLike"), "ArrayLike")

html_theme = "furo"
html_title = "depthrate"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["tables.css"]


def setup(app: Sphinx) -> None:
    """Have signatures name aliases, which Sphinx shows as Python's own wrapper of them where they are nested."""

    def shorten(_: Sphinx, what: str, name: str, thing: Any, options: Any, arguments: str | None, result: str) -> Any:
        return arguments and (arguments.replace("TypeAliasForwardRef('ArrayLike')", "ArrayLike"), result)

    app.connect("autodoc-process-signature", shorten)
