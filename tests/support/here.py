"""What tests in several folders use: a small sweep, and whether permissions bind us."""

from __future__ import annotations

import os
from typing import Any

TINY: dict[str, Any] = {
    "name": "tiny",
    "task": "collapse",
    "params": {"arch": "rn1", "samples_per_class": 5, "steps": 40, "width": 16},
    "grid": {"depth": [2, 3]},
    "seeds": 2,
    "fit": [{"metric": "nc1"}, {"metric": "objective_gap"}],
}


def is_root() -> bool:
    """Whether permissions do not bind this process."""
    return os.geteuid() == 0
