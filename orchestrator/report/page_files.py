"""Files of the page: its style sheet, its script, and plotly.js without maps and 3-D, gzipped.

The page contains plotly.js in gzipped form and unpacks it. The size of a page is 0.7 MB, and would be 4.9 MB with all of
plotly.
"""

import base64
import functools
import gzip
from importlib import resources

_FOLDER = resources.files(__package__)
STYLE = (_FOLDER / "page.css").read_text(encoding="utf-8")
SCRIPT = (_FOLDER / "page.js").read_text(encoding="utf-8")
"""Script that renders the page's figures and sorts its tables."""


def packed_library() -> str:
    """Return plotly.js, gzipped, as base64."""
    return base64.b64encode(_packed()).decode()


def library() -> str:
    """Return the source of plotly.js."""
    return gzip.decompress(_packed()).decode()


@functools.cache
def _packed() -> bytes:
    return (_FOLDER / "plotly" / "plotly-cartesian.min.js.gz").read_bytes()
