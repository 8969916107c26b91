"""Declarations of the metrics of the features' path through the layers. Importable without torch.

P3 is Progressive Feedforward Collapse of ResNet Training.
"""

from depthrate.tasks.figure_request import LAYER, STEP, VARYING, FigureRequest
from depthrate.tasks.metric import Axis, fitted, linear

MONOTONE = (
    linear(
        "nc1_rise",
        "Rise of PFC1",
        "largest rise of nc1 from one layer to the next, over its value at the first. 0 agrees with P3's Theorem 1",
    ),
    linear(
        "pfc2_rise",
        "Rise of PFC2",
        "largest rise of pfc2 from one layer to the next. 0 agrees with P3's conjecture of progressive collapse",
    ),
    linear(
        "ncc_fall", "Fall of PFC3", "largest fall of ncc_accuracy from one layer to the next, 0 if it never falls (P3)"
    ),
    linear(
        "monotone",
        "Monotone along the layers",
        "1 if nc1 ever rises along the layers + 2 if pfc2 does + 4 if ncc_accuracy ever falls, 0 if all are monotone (P3)",
    ),
)
MONOTONE_VERDICT = FigureRequest(
    kind="verdict",
    metric="monotone",
    words=(
        "all monotone",
        "PFC1 rises",
        "PFC2 rises",
        "PFC1 and PFC2 rise",
        "PFC3 falls",
        "PFC1 rises, PFC3 falls",
        "PFC2 rises, PFC3 falls",
        "none monotone",
    ),
    columns=("nc1_rise", "pfc2_rise", "ncc_fall"),
    by=(VARYING,),
    note="Whether PFC1 (nc1) and PFC2 fall and PFC3 (nearest-mean accuracy) rises from layer to layer, and the largest step in "
    "the opposite direction.",
)
_PREDICTED: tuple[tuple[str, str, Axis], ...] = (
    ("nc1", "NC1", "log"),
    ("nc1_pinv", "NC1 (pseudo-inverse)", "log"),
    ("pfc2", "PFC2", "log"),
    ("ncc_accuracy", "NCC accuracy", "linear"),
)
GEODESIC = (
    *(
        fitted(
            f"{name}_geodesic",
            f"{label} predicted",
            f"{name} on the straight line between the path's first and last features, at the layer's relative position "
            "(P3, section IV)",
            axis=axis,
        )
        for name, label, axis in _PREDICTED
    ),
    linear(
        "line_distance",
        "Distance from the line",
        "mean over samples of the distance from the line through a sample's first and last features, relative to their "
        "distance",
    ),
    linear(
        "line_distance_spread",
        "Spread of the distance from the line",
        "standard deviation over samples of that distance",
    ),
    linear(
        "line_position", "Position on the line", "mean over samples of the t at which (1-t) h(0) + t h(1) is nearest"
    ),
    fitted(
        "transport_cost",
        "Transport cost to the end",
        "mean over samples of ||h(1) - h||^2, h(1) a sample's last features, over the mean of ||h(1) - centre||^2. P3's "
        "Theorem 2 assumes that it is small near the end",
    ),
    *MONOTONE,
    fitted(
        "nc1_left",
        "NC1 left at the end",
        "nc1 at the path's last layer over nc1 at its first. 0 is a collapsed end, as P3's Theorems 1 and 2 assume",
    ),
    linear(
        "means_cosine",
        "Cosine of first and last means",
        "cosine of the centred class means of the path's first and last layers. With a collapsed end, nc1 falls all along the "
        "line between them if and only if the cosine is not negative, which holds for an optimal transport (P3, Theorem 1)",
    ),
    linear(
        "effective_depth",
        "Effective depth",
        "first layer of the path from which the nearest-mean accuracy stays at or above 1 - epsilon, null if there is none",
    ),
)
_SHOWN = (("nc1", "NC1"), ("pfc2", "PFC2"), ("ncc_accuracy", "NCC accuracy"))
PATH_FIGURES = (
    MONOTONE_VERDICT,
    *(
        FigureRequest(
            kind="path",
            metric=name,
            x="relative_position",
            lines={"predicted": f"{name}_geodesic"},
            by=(VARYING,),
            title=f"{label} along the path of features",
            y_axis="log",
        )
        for name, label in _SHOWN
    ),
    *(
        FigureRequest(
            kind="map",
            metric=name,
            x=STEP,
            y=LAYER,
            by=(VARYING,),
            where="nc1_geodesic is not null",
            title=f"{label} over steps and layers",
            colours="log",
        )
        for name, label in _SHOWN
    ),
)
"""Figures for a task that measures all of GEODESIC."""
