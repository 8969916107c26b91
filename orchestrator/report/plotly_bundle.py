"""The library that draws in the browser: plotly.js without maps and 3-D, as its makers publish it, packed.

It goes into the page as it lies here; the page's script unpacks it. With all of plotly a page had 4.9 MB, so it has 0.7.
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
    """Return plotly.js as the browser runs it."""
    return gzip.decompress(_packed()).decode()


@functools.cache
def _packed() -> bytes:
    return (resources.files(__package__) / "plotly" / "plotly-cartesian.min.js.gz").read_bytes()
