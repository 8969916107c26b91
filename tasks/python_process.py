"""Python processes of ours, which import what is installed and never a file that lies in the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Variable by which Python, and each Python that it starts, leaves the working folder out of the places it imports from."""


def start_python(
    module: str, *arguments: str, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start an installed module in a process of this Python; nothing else in the product starts one.

    Args:
        module: Name of the module, run as its `__main__`.
        arguments: Arguments of its command line.
        variables: Variables that it has beside those of this process.
        options: Options of `subprocess.Popen`.
    """
    environment = {**os.environ, **(variables or {}), **SAFE_PATH}
    return subprocess.Popen([sys.executable, "-P", "-m", module, *arguments], env=environment, **options)
