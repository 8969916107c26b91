"""Metrics of the tasks `ufm` and `mufm`. P3 is Progressive Feedforward Collapse of ResNet Training."""

from __future__ import annotations

import dataclasses

from depthrate.tasks.measures.path_columns import MONOTONE, MONOTONE_PANEL
from depthrate.tasks.metric import Metric, by_name
from depthrate.tasks.panel import Panel, TradeOffPanel
from depthrate.tasks.supervised.metrics import CLASSES as COLLAPSE_MEASUREMENTS

_COLLAPSE = by_name(COLLAPSE_MEASUREMENTS)
_SHARED_PER_LAYER = ("nc1", "nc1_pinv", "nc2a", "nc2b", "nc3", "ncc_accuracy", "pfc2", "relative_position")
_SHARED_PER_STEP = ("loss", "accuracy", "grad_norm", "lr")

MEASUREMENTS = (
    *(_COLLAPSE[name] for name in _SHARED_PER_LAYER),
    Metric(
        "alignment",
        "Distance from the input",
        "|| H/||H|| - X/||X|| ||: how far features have left their input (P3, section V)",
        axis="linear",
    ),
    *MONOTONE,
    Metric(
        "objective",
        "Objective",
        "loss and both regularisers together: what is minimised (P3, (13))",
        per="step",
    ),
    dataclasses.replace(
        _COLLAPSE["objective_gap"],
        label="Objective above the optimum",
        doc="objective minus the exact optimum: the closed form of the unconstrained model, the exact solver's of the other",
        panel="always",
    ),
    Metric(
        "optimum",
        "Exact optimum",
        "lowest objective: c - c^2/2 with c = sqrt(lambda_W lambda) for the unconstrained model with the squared loss; of the "
        "model with L blocks the exact solver's with lambda / L (P3, Theorem 3, corrected)",
        per="step",
        panel="fitted",
    ),
    *(_COLLAPSE[name] for name in _SHARED_PER_STEP),
)
PANELS: tuple[Panel, ...] = (
    MONOTONE_PANEL,
    TradeOffPanel(x="alignment", y="nc1", along="proximity"),
    TradeOffPanel(x="alignment", y="pfc2", along="proximity"),
)
