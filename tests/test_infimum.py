"""Networks whose blocks weigh nothing come as near to the objective's lower bound as float64 resolves."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.measures.measure import measure
from depthrate.tasks.networks.operations import layer_norm
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.networks.transformer import Transformer
from depthrate.tasks.supervised.theory import best_row_norm, gufm_optimum
from docs.zero_block_networks import (
    as_batch,
    last_position,
    simplex_shifts,
    tiny_attention_transformer,
    zero_block_network,
)

WIDTH, DECAY, PER_CLASS = 64, 0.005, 20


def digits(num_classes):
    dataset = load_dataset("digits", None, samples_per_class=PER_CLASS, data_seed=0, normalize="global")
    is_in = dataset.labels_N < num_classes
    return dataset.x_NI[is_in], dataset.labels_N[is_in]


def judged(network, parameters, x_NI, labels_N):
    """Return the objective above its lower bound, NC1 of the last layer, and what the weights of the blocks cost."""
    num_classes = network.num_classes
    weights = {name: torch.from_numpy(value) for name, value in as_batch(parameters).items()}
    x_1NI, labels = torch.from_numpy(x_NI).unsqueeze(0), torch.from_numpy(labels_N)
    groups = {spec.name: spec.decay for spec in network.parameter_specs()}
    decayed = {name: value.square().sum().item() for name, value in weights.items() if groups[name]}
    loss = F.cross_entropy(network.logits(weights, x_1NI)[0], labels).item()
    optimum = gufm_optimum("ce", num_classes=num_classes, width=WIDTH, weight_decay_last=DECAY, last_bias=True)
    *_, last_1ND = network.features(weights, x_1NI)
    hidden = sum(square for name, square in decayed.items() if groups[name] == "hidden")
    return loss + DECAY / 2 * sum(decayed.values()) - optimum.objective, measure(last_1ND[0], labels)["nc1"], hidden


def residual(num_classes, depth, linear_layers):
    shape = {"linear_layers": linear_layers, "pre_norm": False, "depth": depth, "width": WIDTH, "last_bias": True}
    return ResidualNetwork(**shape, input_dimensions=64, num_classes=num_classes, ln_eps=0.0)


@pytest.mark.parametrize("linear_layers", [1, 2])
@pytest.mark.parametrize(
    ("shifts", "separation", "largest_nc1", "largest_excess"),
    [([0, 3], 1e-3, 1e-6, 1e-7), ([0, 0, 4], 1e-2, 1e-4, 1e-5), ([0, 0, 4], 1e-3, 1e-6, 1e-7)],
)
def test_blocks_of_zero_reach_the_lower_bound(shifts, separation, largest_nc1, largest_excess, linear_layers):
    num_classes, depth = len(shifts) + 1, len(shifts) + sum(shifts)
    x_NI, labels_N = digits(num_classes)
    row_norm = best_row_norm(num_classes, WIDTH, DECAY)
    built = {"width": WIDTH, "shifts": shifts, "separation": separation, "row_norm": row_norm}
    parameters = zero_block_network(x_NI, labels_N, **built, linear_layers=linear_layers)
    network = residual(num_classes, depth, linear_layers)
    assert parameters.keys() == {spec.name for spec in network.parameter_specs()}
    excess, nc1, hidden = judged(network, parameters, x_NI, labels_N)
    assert hidden == 0 and nc1 < largest_nc1 and 0 < excess < largest_excess


def test_excess_falls_quadratically():
    x_NI, labels_N = digits(3)
    row_norm = best_row_norm(3, WIDTH, DECAY)

    def excess(separation):
        given = {"width": WIDTH, "shifts": [0, 3], "separation": separation, "row_norm": row_norm}
        return judged(residual(3, 5, 1), zero_block_network(x_NI, labels_N, **given), x_NI, labels_N)[0]

    assert excess(1e-2) / excess(1e-3) == pytest.approx(100, rel=0.05)


def transformer_case(attention):
    """A post-LN L-T11 on digits in 16 patches, three classes: what one position alone holds does not part them."""
    x_NI, labels_N = digits(3)
    data = {"positions": 16, "patch_dimensions": 4, "vocabulary_size": None, "num_classes": 3, "image_shape": (1, 8, 8)}
    shape = {"attention_layers": 1, "mlp_layers": 1, "pre_norm": False, "depth": 5, "width": WIDTH}
    network = Transformer(**shape, **data, last_bias=True, ln_eps=0.0)
    x_NI = network.arranged(x_NI)
    generator = np.random.default_rng(0)
    embedding = {"W_e": generator.standard_normal((WIDTH, 4)), "W_p": generator.standard_normal((WIDTH, 16))}
    embedding["W_p"][:, -1] = 1e14 * last_position(WIDTH, 2)
    patches_NSP = torch.from_numpy(x_NI.reshape(-1, 16, 4))
    embedded_NSD = patches_NSP @ torch.from_numpy(embedding["W_e"].T) + torch.from_numpy(embedding["W_p"].T)
    means = layer_norm(embedded_NSD, 0.0).mean(1).numpy()
    built = {"width": WIDTH, "shifts": [0, 3], "separation": 1e-3, "row_norm": best_row_norm(3, WIDTH, DECAY)}
    parameters = tiny_attention_transformer(means, labels_N, **built, attention=attention)
    return judged(network, embedding | parameters, x_NI, labels_N)


def test_transformer_reaches_it_with_tiny_weight():
    costly, cheap = transformer_case(1e-4), transformer_case(1e-5)
    assert cheap[2] == pytest.approx(costly[2] / 100) and 0 < cheap[0] < costly[0]
    assert cheap[0] < 1e-6 and cheap[1] < 1e-6


def test_infeasible_constructions_are_refused():
    with pytest.raises(ValueError, match="no shifts were found that make 4 clusters a simplex"):
        simplex_shifts([0, 0, 1])
    x_NI = np.zeros((6, 3))
    with pytest.raises(ValueError, match="no hyperplane separates class 0"):
        zero_block_network(x_NI, np.repeat([0, 1, 2], 2), width=8, shifts=[0, 3], separation=0.01, row_norm=1.0)
