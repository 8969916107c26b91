"""Declarations of the metrics that a trial may request by name, for any network. Importable without torch."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from depthrate.tasks.metric import Metric
from depthrate.tasks.parameters import ParameterError, nearest

PARAMETER = "measure"
"""Parameter that lists the requested metrics."""
CKA_LAST = "cka_last"
INPUT = "cka_input"
_named = partial(Metric, panel="fitted", asked_by=PARAMETER)

NAMED_MEASURES = (
    _named(
        "effective_rank",
        "Effective rank",
        "e^entropy of the singular values of the centred features, as shares of their sum (Roy & Vetterli 2007)",
    ),
    _named(
        "intrinsic_dimension",
        "Intrinsic dimension",
        "TwoNN, from each sample's two nearest neighbours, at most 1,000 evenly spaced samples (Facco et al. 2017)",
    ),
    _named(
        "linear_probe",
        "Linear probe",
        "held-out accuracy of a ridge regression fitted on every second sample of each class, R^2 for targets (Alain & Bengio "
        "2016)",
        axis="linear",
    ),
    _named(
        INPUT,
        "CKA with the input",
        "linear centred kernel alignment of the features with the network's input, null for text (Kornblith et al. 2019)",
        axis="linear",
    ),
    _named(
        CKA_LAST,
        "CKA with the last layer",
        "linear centred kernel alignment of the features with the last layer's (Kornblith et al. 2019)",
        axis="linear",
    ),
)
NAMES = tuple(measurement.name for measurement in NAMED_MEASURES)
DOC = (
    f"additional metrics of each layer, separated by commas: {', '.join(NAMES)}, or custom ones as ./file.py:function. Slow "
    "for thousands of samples"
)


def split_measure(text: str | None) -> list[str]:
    """Split the parameter `measure` into names of metrics and references to custom ones."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def parse_measure(text: str | None, custom: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Parse the parameter `measure` into metric name -> function of a custom metric, None for a built-in metric.

    Raises:
        ParameterError: A name is unknown or repeated.
    """
    names = split_measure(text)
    for name in names:
        if name not in (known := [*NAMES, *custom]):
            raise ParameterError(f"measure has {name!r}, expected {', '.join(known)} or null{nearest(name, known)}")
        if names.count(name) > 1:
            raise ParameterError(f"measure has {name!r} twice. Name it once.")
    return {name: custom.get(name) for name in names}
