"""L-RN1 and L-RN2 against a plain reference written from the definition (science page, section 1)."""

import math

import numpy as np
import pytest
import torch

from depthrate.tasks.networks.flat_parameters import draw_parameters, split_parameters
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters
from tests.support import native_trials
from tests.support.native_trials import plan_of, random_parameters

INPUTS, WIDTH, CLASSES, SAMPLES, TRIALS = 5, 7, 4, 9, 3
SHAPES = [(linear, pre, depth) for linear in (1, 2) for pre in (False, True) for depth in (1, 2, 5)]
every_shape = pytest.mark.parametrize(("linear_layers", "pre_norm", "depth"), SHAPES)


def network_of(linear_layers, pre_norm, depth, last_bias=True):
    shape = {"inputs": INPUTS, "classes": CLASSES, "depth": depth, "last_bias": last_bias}
    return native_trials.network_of(WIDTH, linear_layers=linear_layers, pre_norm=pre_norm, **shape)


def inputs(trials=TRIALS):
    return torch.randn(trials, SAMPLES, INPUTS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def reference(theta, x, linear_layers, pre_norm, depth):
    """One sample through one network: what every linear map reads, and the output."""

    def ln(v):
        mean = sum(v) / len(v)
        deviation = math.sqrt(sum((c - mean) ** 2 for c in v) / len(v))
        return np.array([(c - mean) / deviation for c in v])

    def relu(v):
        return np.array([max(c, 0.0) for c in v])

    def block(v, number):
        if linear_layers == 1:
            return relu(theta[f"W_{number}"] @ v + theta[f"b_{number}"])
        inner = relu(theta[f"W_{number},1"] @ v + theta[f"b_{number},1"])
        return theta[f"W_{number},2"] @ inner + theta[f"b_{number},2"]

    h = ln(theta["W_0"] @ x + theta["b_0"])
    read = [h]
    for number in range(1, depth):
        h = h + block(ln(h), number) if pre_norm else ln(h + block(h, number))
        read.append(ln(h) if pre_norm else h)
    return read, theta["W_L"] @ read[-1] + theta.get("b_L", 0.0)


@pytest.mark.parametrize("last_bias", [True, False])
@every_shape
def test_output_and_every_layer_equal_the_definition(linear_layers, pre_norm, depth, last_bias):
    network = network_of(linear_layers, pre_norm, depth, last_bias)
    parameters, x_TNI = random_parameters(network, TRIALS), inputs()
    features = list(network.features(parameters, x_TNI))
    logits_TNK = network.logits(parameters, x_TNI)
    assert len(features) == depth
    for trial in range(TRIALS):
        theta = {name: p[trial].numpy() for name, p in parameters.items()}
        for sample in range(SAMPLES):
            read, output = reference(theta, x_TNI[trial, sample].numpy(), linear_layers, pre_norm, depth)
            np.testing.assert_allclose([h[trial, sample].numpy() for h in features], read, atol=1e-10)
            np.testing.assert_allclose(logits_TNK[trial, sample].numpy(), output, atol=1e-10)


@pytest.mark.parametrize(("linear_layers", "pre_norm"), [(1, False), (1, True), (2, False), (2, True)])
@pytest.mark.slow
def test_gradients_equal_finite_differences(linear_layers, pre_norm):
    network = network_of(linear_layers, pre_norm, depth=3)
    parameters, x_TNI = random_parameters(network, trials=2), inputs(trials=2)
    leaves = [p.requires_grad_() for p in parameters.values()]

    def loss_T(*values):
        return network.logits(dict(zip(parameters, values, strict=True)), x_TNI).square().sum((1, 2))

    assert torch.autograd.gradcheck(loss_T, leaves)


@pytest.mark.parametrize(("linear_layers", "matrices_a_block"), [(1, 1), (2, 2)])
@pytest.mark.parametrize("depth", [1, 2, 13])
def test_depth_counts_the_embedding_and_its_residual_blocks(linear_layers, matrices_a_block, depth):
    names = [spec.name for spec in network_of(linear_layers, False, depth).parameter_specs()]
    square = [name for name in names if name.startswith("W") and name not in ("W_0", "W_L")]
    assert len(square) == (depth - 1) * matrices_a_block
    assert names.count("W_0") == names.count("W_L") == 1 and len(names) == len(set(names))


@pytest.mark.parametrize("loss", ["ce", "mse"])
@every_shape
def test_objective_is_loss_plus_half_lambda_squares(linear_layers, pre_norm, depth, loss):
    plan = plan_of(loss=loss, schedule="constant", num_steps=1, dtype=torch.float64)
    trials = [Hyperparameters(s, lr=0.1, momentum=0.9, weight_decays={"hidden": 0.3 * s, "last": 0.7}) for s in (1, 2)]
    labels_N = torch.arange(SAMPLES) % CLASSES
    trainer = FusedTrainer(network_of(linear_layers, pre_norm, depth), plan, trials, inputs()[0], labels_N)
    found = trainer.evaluate()
    for trial, h in enumerate(trials):
        theta = {name: p[trial].numpy() for name, p in trainer.parameters().items()}
        hidden = sum((w**2).sum() for name, w in theta.items() if name[0] == "W" and name not in ("W_0", "W_L"))
        penalty = (h.weight_decays["hidden"] * hidden + h.weight_decays["last"] * (theta["W_L"] ** 2).sum()) / 2
        assert (found["objective"] - found["loss"])[trial].item() == pytest.approx(penalty, rel=1e-10)
        outputs = np.array([reference(theta, x.numpy(), linear_layers, pre_norm, depth)[1] for x in inputs()[0]])
        assert found["loss"][trial].item() == pytest.approx(data_term(loss, outputs, labels_N.numpy()), rel=1e-10)
        assert found["accuracy"][trial].item() == pytest.approx(np.mean(outputs.argmax(1) == labels_N.numpy()))


def data_term(loss, outputs_NK, labels_N):
    """Mean cross-entropy, or (1/2N) ||f - Y||^2."""
    total = 0.0
    for f, label in zip(outputs_NK, labels_N, strict=True):
        total += np.log(np.exp(f).sum()) - f[label] if loss == "ce" else ((f - np.eye(CLASSES)[label]) ** 2).sum() / 2
    return total / len(labels_N)


@pytest.mark.parametrize(
    ("init", "std_times_root_fan_in", "zero_biases"),
    [("uniform", 1 / math.sqrt(3), False), ("normal", 1.0, True), ("he", math.sqrt(2), True)],
)
def test_initial_weights_have_their_variance(init, std_times_root_fan_in, zero_biases):
    network = native_trials.network_of(100, depth=2, inputs=400, classes=50)
    specs = network.parameter_specs()
    theta_P = torch.empty(network.num_parameters, dtype=torch.float64)
    draw_parameters(theta_P, specs, init, torch.Generator().manual_seed(0))
    parameters = split_parameters(theta_P.unsqueeze(0), specs)
    for name, fan_in in (("W_0", 400), ("W_1", 100), ("W_L", 100)):
        assert parameters[name].std().item() * math.sqrt(fan_in) == pytest.approx(std_times_root_fan_in, rel=0.05)
        if init == "uniform":
            assert parameters[name].abs().max().item() <= 1 / math.sqrt(fan_in)
    assert bool((parameters["b_1"] == 0).all()) == zero_biases


def test_a_constant_feature_vector_gives_no_nan():
    network = network_of(1, False, 2)
    parameters = {name: torch.zeros_like(p) for name, p in random_parameters(network, TRIALS).items()}
    assert torch.isfinite(network.logits(parameters, inputs())).all()
