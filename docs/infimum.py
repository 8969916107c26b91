"""Draw the picture of gallery/infimum.md from the networks that it describes: `python docs/infimum.py`."""

from pathlib import Path

import matplotlib
import torch
from zero_block_networks import as_batch, zero_block_network

from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.supervised.theory import best_row_norm

matplotlib.use("svg")
import matplotlib.pyplot as plt

IMAGES = Path(__file__).parent / "images"
WIDTH, SHIFTS, COLORS, MARKERS = 64, (0, 3), ("#0072b2", "#d55e00", "#009e73"), "osD"
INKS = {"infimum.svg": "#222222", "infimum-dark.svg": "#dddddd"}
WHAT = ("embedded: 0 | 1, 2", "1, 2 cancelled: 1 | 2", "shift", "shift", "shift: a simplex")


def features() -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the features [N, 2] in the simplex's plane behind each LayerNorm, over sqrt(width), and the labels [N]."""
    dataset = load_dataset("digits", None, samples_per_class=20, data_seed=0, normalize="global")  # type: ignore[arg-type]
    is_in = dataset.labels_N < 3
    x_NI, labels_N = dataset.x_NI[is_in], dataset.labels_N[is_in]
    given = {"shifts": SHIFTS, "separation": 1e-2, "row_norm": best_row_norm(3, WIDTH, 0.005)}
    made = zero_block_network(x_NI, labels_N, width=WIDTH, **given)  # type: ignore[arg-type]
    network = ResidualNetwork(
        linear_layers=1,
        pre_norm=False,
        depth=5,
        width=WIDTH,
        input_dimensions=64,
        num_classes=3,
        last_bias=True,
        ln_eps=0.0,
    )
    weights = {name: torch.from_numpy(value) for name, value in as_batch(made).items()}
    layers = network.features(weights, torch.from_numpy(x_NI).unsqueeze(0))
    plane_D2 = torch.linalg.svd(weights["W_L"][0])[2][:2].T
    return [layer[0] @ plane_D2 / WIDTH**0.5 for layer in layers], torch.from_numpy(labels_N)


def draw() -> None:
    """Write the picture for light and for dark pages."""
    layers, labels_N = features()
    matplotlib.rcParams |= {"svg.hashsalt": "infimum", "font.size": 8}
    for name, ink in INKS.items():
        figure, axes = plt.subplots(1, len(layers), figsize=(9, 2.4), layout="constrained")
        for number, (axis, h_N2, what) in enumerate(zip(axes, layers, WHAT, strict=True), start=1):
            axis.add_patch(plt.Circle((0, 0), 1, fill=False, color=ink, alpha=0.3))  # type: ignore[attr-defined]
            for label, (color, marker) in enumerate(zip(COLORS, MARKERS, strict=True)):
                x, y = h_N2[labels_N == label].T
                axis.scatter(x, y, s=40 - 12 * label, color=color, marker=marker, label=f"class {label}", alpha=0.7)
            axis.set_title(f"layer {number}\n{what}", color=ink)
            axis.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
            axis.axis("off")
        marks, names = axes[0].get_legend_handles_labels()
        figure.legend(
            marks, names, loc="outside lower center", ncols=len(names), frameon=False, labelcolor=ink, fontsize=7
        )
        figure.savefig(IMAGES / name, transparent=True, metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw()
