"""Load the bundled plotly.js, its published version without maps and 3-D, gzipped.

The page contains it gzipped and unpacks it. A page has 0.7 MB, and would have 4.9 MB with all of plotly.
"""

from __future__ import annotations

import base64
import functools
import gzip
from importlib import resources


def packed_library() -> str:
    """Return plotly.js, gzipped, as base64."""
    return base64.b64encode(_packed()).decode()


def library() -> str:
    """Return the source of plotly.js."""
    return gzip.decompress(_packed()).decode()


@functools.cache
def _packed() -> bytes:
    return (resources.files(__package__) / "plotly" / "plotly-cartesian.min.js.gz").read_bytes()
