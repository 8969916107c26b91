"""The site of these pages: `sphinx-build -W docs build/docs`."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "depthrate"
release = version_of("depthrate")
extensions = ["myst_parser"]
exclude_patterns = ["images"]

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
smartquotes = False  # --option stays --option

html_theme = "furo"
html_title = "depthrate"
html_copy_source = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["tables.css"]
