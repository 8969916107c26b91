"""Rates: curves fitted to metrics over depth, with their uncertainty."""

import functools
import warnings
from collections.abc import Sequence

MAX_VARIABLES = 3
"""Maximum number of variables of a fit."""
DEFAULT_FORMS = ("power", "power_floor")
"""Default forms of a table, and in several variables. All forms are in `models.FORMS`."""
LOSSES = ("log", "y", "huber")
"""Losses: squares of the residuals of log y, squares of those of y, or Huber's function of those of log y."""
RENAMED_FORMS = {
    "product": "power",
    "sum": "power_floor",
    "log_product": "power_log",
    "log2_product": "power_log2",
}
"""Form as it was called before -> its name. Sweep files and `depthrate.fit` accept both for one version."""


def current_names(forms: Sequence[str]) -> tuple[str, ...]:
    """Return forms under their current names, each once. A former name causes a FutureWarning, once in a process."""
    for form in forms:
        if form in RENAMED_FORMS:
            _warn_of_former_name(form)
    return tuple(dict.fromkeys(RENAMED_FORMS.get(form, form) for form in forms))


@functools.cache
def _warn_of_former_name(form: str) -> None:
    text = f"the form {form!r} is now called {RENAMED_FORMS[form]!r}. The next version will refuse the former name."
    warnings.warn(text, FutureWarning, stacklevel=4)
