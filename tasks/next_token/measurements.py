"""What the task `next_token` measures. Importable without torch.

WP is Wu & Papyan, Linguistic Collapse: Neural Collapse in (Large) Language Models (NeurIPS 2024).
"""

from __future__ import annotations

from depthrate.tasks.collapse.measurements import MEASUREMENTS as OF_COLLAPSE
from depthrate.tasks.measurement import Measurement, by_name

_SAME = by_name(OF_COLLAPSE)
MEASUREMENTS = (
    Measurement(
        "nc1",
        "NC1",
        "tr Sigma_W / tr Sigma_B: spread within classes over spread of their means, which weigh alike (P1, Def. 3.4)",
    ),
    _SAME["nc1_pinv"],
    Measurement(
        "cdnv",
        "CDNV",
        "mean over pairs of classes of their mean variance over the squared distance of their means (Galanti et al. 2022; WP's "
        "NC1)",
    ),
    Measurement(
        "nc2_norms",
        "NC2, norms",
        "standard deviation of log ||mu_k - mu_G|| over classes (WP's equinormness)",
        panel="fitted",
    ),
    Measurement(
        "nc2_angles",
        "NC2, angles",
        "standard deviation over pairs of classes of the cosine of mu_k - mu_G and mu_l - mu_G (WP's equiangularity)",
        panel="fitted",
    ),
    Measurement(
        "gnc2",
        "GNC2",
        "standard deviation over pairs of classes of the logarithm of their directions' inverse distance (WP's hyperspherical "
        "uniformity)",
        panel="fitted",
    ),
    Measurement(
        "nc3_means",
        "NC3 of class means",
        "1 - mean over classes of the cosine of mu_k - mu_G and the row of W (WP's self-duality); null where widths differ",
        panel="fitted",
    ),
    Measurement(
        "unc3",
        "UNC3",
        "standard deviation over classes of these cosines (WP's uniform duality)",
        panel="fitted",
    ),
    Measurement(
        "nc4",
        "NC4 agreement",
        "share of positions whose nearest class mean is the class that the network gives, of those measured (WP's agreement)",
        axis="linear",
        panel="fitted",
    ),
    _SAME["ncc_accuracy"],
    Measurement(
        "measured_classes",
        "Measured classes",
        "tokens that come next at min_class_count measured positions or more",
        axis="linear",
        panel="fitted",
    ),
    Measurement(
        "measured_share",
        "Measured share",
        "share of the positions whose next token is one of these; the others are trained on and not measured",
        axis="linear",
        panel="fitted",
    ),
    Measurement("loss", "Loss", "mean cross-entropy of the next token over all positions, in nats", per="step"),
    Measurement("objective", "Objective", "loss and regularisation together: what training minimises", per="step"),
    Measurement("perplexity", "Perplexity", "e^loss", per="step", panel="fitted"),
    Measurement(
        "loss_gap",
        "Loss above the entropy",
        "loss minus the least expected one, the chain's entropy rate; below 0 sequences are learnt by heart; null for other "
        "data than markov",
        axis="linear",
        per="step",
    ),
    Measurement(
        "accuracy", "Accuracy", "share of positions whose next token has the largest output", axis="linear", per="step"
    ),
    _SAME["grad_norm"],
    _SAME["lr"],
)
