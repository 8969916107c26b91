"""Start Python processes that import installed packages and never files of the working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Variable that removes the working directory from the import path of Python and of its child processes."""


def start_python(
    module: str, *arguments: str, variables: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start an installed module in a new process of this Python. All of depthrate's Python processes start here.

    Args:
        module: Module to run as `__main__`.
        arguments: Command-line arguments.
        variables: Environment variables in addition to this process's variables.
        options: Options of `subprocess.Popen`.
    """
    environment = {**os.environ, **(variables or {}), **SAFE_PATH}
    return subprocess.Popen([sys.executable, "-P", "-m", module, *arguments], env=environment, **options)
