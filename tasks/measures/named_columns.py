"""What a trial asks to be measured by name, of any network's layers: declared once, for the tasks that offer it.

Importable without torch.
"""

from __future__ import annotations

from depthrate.tasks.metric import Metric
from depthrate.tasks.parameters import ParameterError, nearest

PARAMETER = "measure"
"""The parameter of a trial that names them."""
CKA_LAST = "cka_last"
INPUT = "cka_input"

NAMED_MEASURES = (
    Metric(
        "effective_rank",
        "Effective rank",
        "e^entropy of the singular values of the centred features, as shares of their sum (Roy & Vetterli 2007)",
        panel="fitted",
        asked_by=PARAMETER,
    ),
    Metric(
        "intrinsic_dimension",
        "Intrinsic dimension",
        "TwoNN: from the two nearest neighbours of each sample, of at most 1,000 evenly spaced ones (Facco et al. 2017)",
        panel="fitted",
        asked_by=PARAMETER,
    ),
    Metric(
        "linear_probe",
        "Linear probe",
        "of a ridge regression on the features, fitted on every second sample of each class, the accuracy on the others; of "
        "targets R^2 (Alain & Bengio 2016)",
        axis="linear",
        panel="fitted",
        asked_by=PARAMETER,
    ),
    Metric(
        INPUT,
        "CKA with the input",
        "linear centred kernel alignment of the features with the network's input; null for texts (Kornblith et al. 2019)",
        axis="linear",
        panel="fitted",
        asked_by=PARAMETER,
    ),
    Metric(
        CKA_LAST,
        "CKA with the last layer",
        "linear centred kernel alignment of the features with those of the last layer (Kornblith et al. 2019)",
        axis="linear",
        panel="fitted",
        asked_by=PARAMETER,
    ),
)
NAMES = tuple(measurement.name for measurement in NAMED_MEASURES)
DOC = (
    f"what is measured of each layer beside the rest, by name, several with commas: {', '.join(NAMES)}; it takes a while for "
    "thousands of samples"
)


def parse_measure(text: str | None) -> tuple[str, ...]:
    """Return the names in the parameter `measure`; none where it is null.

    Raises:
        ParameterError: one is unknown, or stands there twice.
    """
    names = () if text is None else tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in NAMES:
            raise ParameterError(f"measure names {name!r}{nearest(name, NAMES)}; allowed: {', '.join(NAMES)}, or null")
        if names.count(name) > 1:
            raise ParameterError(f"measure names {name!r} twice; give it once")
    return names
