"""Declarations of the metrics that a trial may request by name, for any network. Importable without torch."""

from collections.abc import Mapping, Sequence
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
_of_pair = partial(_named, axis="linear")
_PAIR = "at the layer that matrix A writes and matrix B reads"
ALIGNMENT_MEASURES = (
    _of_pair(
        "singular_alignment",
        "Alignment of the first singular vectors",
        f"|<u_1(A), v_1(B)>| {_PAIR}. null where the two largest singular values of a matrix differ by less than 1 %",
    ),
    _of_pair(
        "subspace_alignment",
        "Alignment of singular subspaces",
        f"||U_K(A)^T V_K(B)||_F^2 / K for the first K singular vectors, K classes, {_PAIR}. null where singular values K and "
        "K + 1 differ by less than 1 % of the largest",
    ),
    _of_pair(
        "product_alignment",
        "Alignment of consecutive weights",
        f"||B A||_F^2 / sum_i s_i(B)^2 s_i(A)^2 {_PAIR}, with sorted singular values s_i: 1 if all singular vectors agree, as "
        "in balanced linear networks",
    ),
)
_HESSIAN = "of the Hessian of `objective` (loss and weight decay) at the end of training"
HESSIAN_MEASURES = (
    _named("hessian_max", "Largest Hessian eigenvalue", f"largest eigenvalue {_HESSIAN}, by Lanczos' method"),
    _named(
        "hessian_eigenvalues",
        "Largest Hessian eigenvalues",
        f"three largest eigenvalues {_HESSIAN}, with their multiplicity",
        kind="vector",
        entry="Eigenvalue",
    ),
    _named(
        "hessian_trace",
        "Hessian trace",
        f"trace {_HESSIAN}, exact up to 200 parameters, else from 30 vectors of random signs",
    ),
    _named("hessian_trace_error", "Error of the Hessian trace", "standard error of hessian_trace, 0 if that is exact"),
)
WEIGHT_MEASURES = (*ALIGNMENT_MEASURES, *HESSIAN_MEASURES)
ALIGNMENT_NAMES, HESSIAN_NAMES = (
    tuple(measurement.name for measurement in group) for group in (ALIGNMENT_MEASURES, HESSIAN_MEASURES)
)
EIGENVALUE_NAMES, TRACE_NAMES = HESSIAN_NAMES[:2], HESSIAN_NAMES[2:]
WEIGHT_NAMES = (*ALIGNMENT_NAMES, *HESSIAN_NAMES)
TRAINED_NAMES = (*NAMES, *WEIGHT_NAMES)
"""Metrics that trials may request. Those of the weights need a trainer."""
WEIGHT_DOC = f"{', '.join(ALIGNMENT_NAMES)} of consecutive weights, and {', '.join(HESSIAN_NAMES)} at the end"
DOC = (
    f"additional metrics of each layer, separated by commas: {', '.join(NAMES)}, {WEIGHT_DOC}, or custom ones as "
    "./file.py:function. Slow for thousands of samples"
)


def split_measure(text: str | None) -> list[str]:
    """Split the parameter `measure` into names of metrics and references to custom ones."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def parse_measure(
    text: str | None, custom: Mapping[str, Any] = MappingProxyType({}), built_in: Sequence[str] = TRAINED_NAMES
) -> dict[str, Any]:
    """Parse the parameter `measure` into metric name -> function of a custom metric, None for a built-in metric.

    Raises:
        ParameterError: A name is unknown or repeated.
    """
    names = split_measure(text)
    for name in names:
        if name not in (known := [*built_in, *custom]):
            raise ParameterError(f"measure has {name!r}, expected {', '.join(known)} or null{nearest(name, known)}")
        if names.count(name) > 1:
            raise ParameterError(f"measure has {name!r} twice. Name it once.")
    return {name: custom.get(name) for name in names}
