"""L-T11 to L-T22 against a plain reference written from the definition (science page, section 1), sample by sample."""

import math

import numpy as np
import pytest
import torch

from depthrate.tasks.networks.transformer import cut_into_patches
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import EVALUATION_ROWS, Hyperparameters
from tests.support.native_trials import plan_of, random_parameters, transformer_of

PATCH, POSITIONS, VOCABULARY, WIDTH, CLASSES, SAMPLES, TRIALS = 3, 4, 11, 7, 3, 6, 3
ARCHITECTURES = [(x, y, pre) for x in (1, 2) for y in (1, 2) for pre in (False, True)]
every_architecture = pytest.mark.parametrize(("attention_layers", "mlp_layers", "pre_norm"), ARCHITECTURES)
on_patches_and_tokens = pytest.mark.parametrize("is_text", [False, True], ids=["patches", "tokens"])


def network_of(attention_layers, mlp_layers, pre_norm, depth=2, is_text=False, last_bias=True):
    read = {"vocabulary": VOCABULARY} if is_text else {"patch": PATCH}
    shape = {"depth": depth, "width": WIDTH, "positions": POSITIONS, "classes": CLASSES, "last_bias": last_bias}
    return transformer_of(attention_layers, mlp_layers, pre_norm, **read, **shape)


def inputs(is_text, trials=TRIALS):
    generator = torch.Generator().manual_seed(1)
    if is_text:
        return torch.randint(VOCABULARY, (trials, SAMPLES, POSITIONS), generator=generator)
    return torch.randn(trials, SAMPLES, POSITIONS * PATCH, generator=generator, dtype=torch.float64)


def columns_of(sample, is_text):
    """The matrix Z: one-hot columns of a text's tokens, or an image's patches."""
    if is_text:
        return np.eye(VOCABULARY)[:, sample]
    return sample.reshape(POSITIONS, PATCH).T


def ln(matrix):
    """Each column: subtract its mean, divide by its standard deviation."""
    out = np.empty_like(matrix)
    for j in range(matrix.shape[1]):
        column = matrix[:, j]
        mean = sum(column) / len(column)
        out[:, j] = (column - mean) / math.sqrt(sum((c - mean) ** 2 for c in column) / len(column))
    return out


def attention(theta, block, z, attention_layers):
    if attention_layers == 1:
        w_qk, w_ov = theta[f"W_{block},QK"], theta[f"W_{block},VO"]
    else:
        w_qk = theta[f"W_{block},K"].T @ theta[f"W_{block},Q"]
        w_ov = theta[f"W_{block},O"] @ theta[f"W_{block},V"]
    scores = z.T @ w_qk @ z / math.sqrt(WIDTH)
    weights = np.zeros_like(scores)
    for query in range(POSITIONS):  # columns are queries; a query sees itself and what stands before it
        exponentials = [math.exp(scores[key, query]) for key in range(query + 1)]
        weights[: query + 1, query] = np.array(exponentials) / sum(exponentials)
    return w_ov @ z @ weights


def mlp(theta, block, z, mlp_layers):
    if mlp_layers == 1:
        return np.maximum(theta[f"W_{block}"] @ z + theta[f"b_{block}"][:, None], 0)
    inner = np.maximum(theta[f"W_{block},1"] @ z + theta[f"b_{block},1"][:, None], 0)
    return theta[f"W_{block},2"] @ inner + theta[f"b_{block},2"][:, None]


def reference(theta, z, attention_layers, mlp_layers, pre_norm, depth):
    """One sample through one network: LN of the last column after the embedding and each block, and the output."""
    x = theta["W_e"] @ z + theta["W_p"]
    if pre_norm:
        x = ln(x)
    read = [ln(x)[:, -1]]
    for block in range(1, depth + 1):
        if pre_norm:
            x = x + attention(theta, block, ln(x), attention_layers)
            x = x + mlp(theta, block, ln(x), mlp_layers)
        else:
            x = ln(x)
            x = x + attention(theta, block, x, attention_layers)
            x = ln(x)
            x = x + mlp(theta, block, x, mlp_layers)
        read.append(ln(x)[:, -1])
    return read, theta["W_L"] @ read[-1] + theta.get("b_L", 0.0)


@on_patches_and_tokens
@pytest.mark.parametrize(("depth", "last_bias"), [(1, True), (3, False)])
@every_architecture
def test_output_and_every_layer_equal_the_definition(attention_layers, mlp_layers, pre_norm, depth, last_bias, is_text):
    network = network_of(attention_layers, mlp_layers, pre_norm, depth, is_text, last_bias)
    parameters, x_TNI = random_parameters(network, TRIALS), inputs(is_text)
    features = list(network.features(parameters, x_TNI))
    logits_TNK = network.logits(parameters, x_TNI)
    assert len(features) == depth + 1
    for trial in range(TRIALS):
        theta = {name: p[trial].numpy() for name, p in parameters.items()}
        for sample in range(SAMPLES):
            z = columns_of(x_TNI[trial, sample].numpy(), is_text)
            read, output = reference(theta, z, attention_layers, mlp_layers, pre_norm, depth)
            np.testing.assert_allclose([h[trial, sample].numpy() for h in features], read, atol=1e-10)
            np.testing.assert_allclose(logits_TNK[trial, sample].numpy(), output, atol=1e-10)


@on_patches_and_tokens
@every_architecture
def test_gradients_equal_finite_differences(attention_layers, mlp_layers, pre_norm, is_text):
    network = network_of(attention_layers, mlp_layers, pre_norm, depth=2, is_text=is_text)
    parameters, x_TNI = random_parameters(network, trials=2), inputs(is_text, trials=2)
    leaves = [p.requires_grad_() for p in parameters.values()]

    def loss(*values):
        return network.logits(dict(zip(parameters, values, strict=True)), x_TNI).square().sum()

    loss(*leaves).backward()
    generator = torch.Generator().manual_seed(2)
    for leaf in leaves:  # along one random direction a tensor: all entries take part, at the cost of two evaluations
        direction = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        step = 1e-5 * direction / direction.norm()
        up, down = (loss(*[p + sign * step if p is leaf else p for p in leaves]).item() for sign in (1, -1))
        expected = (leaf.grad * direction).sum().item() / direction.norm().item()
        assert (up - down) / 2e-5 == pytest.approx(expected, rel=1e-5, abs=1e-4)


def test_attention_is_causal():
    network = network_of(2, 2, False)
    parameters = random_parameters(network, trials=1)
    x_TNI = inputs(False, trials=1)
    for position in range(POSITIONS):
        changed = x_TNI.clone()
        changed[:, :, position * PATCH] += 1.0
        assert not torch.allclose(network.logits(parameters, changed), network.logits(parameters, x_TNI))
        hidden, before = (network._block(parameters, 1, network._embed(parameters, x)) for x in (changed, x_TNI))
        assert torch.equal(hidden[:, :, :position], before[:, :, :position])


@pytest.mark.parametrize("depth", [1, 2, 13])
@every_architecture
def test_depth_counts_blocks_of_attention_and_mlp(attention_layers, mlp_layers, pre_norm, depth):
    specs = network_of(attention_layers, mlp_layers, pre_norm, depth).parameter_specs()
    square = [spec.name for spec in specs if spec.shape == (WIDTH, WIDTH)]
    assert len(square) == depth * ({1: 2, 2: 4}[attention_layers] + mlp_layers)
    assert len({spec.name for spec in specs}) == len(specs)


def trainer_of(network, seeds, is_text, dtype=torch.float64, optimizer="sgd", num_samples=SAMPLES):
    plan = plan_of(optimizer=optimizer, schedule="constant", num_steps=20, dtype=dtype)
    trials = [Hyperparameters(s, 0.01 * (s + 1), 0.9, {"hidden": 0.3 * s, "last": 0.7}) for s in seeds]
    x_NI = inputs(is_text, trials=-(-num_samples // SAMPLES)).flatten(0, 1)[:num_samples]
    return FusedTrainer(network, plan, trials, x_NI if is_text else x_NI.to(dtype), torch.arange(num_samples) % CLASSES)


@on_patches_and_tokens
@every_architecture
def test_objective_is_cross_entropy_plus_half_lambda_squares(attention_layers, mlp_layers, pre_norm, is_text):
    network = network_of(attention_layers, mlp_layers, pre_norm, is_text=is_text)
    trainer = trainer_of(network, [1, 2], is_text)
    found = trainer.evaluate()
    for trial, h in enumerate(trainer.hyperparameters):
        theta = {name: p[trial].numpy() for name, p in trainer.parameters().items()}
        hidden = sum((w**2).sum() for name, w in theta.items() if name[0] == "W" and name[2:] not in ("e", "p", "L"))
        penalty = (h.weight_decays["hidden"] * hidden + h.weight_decays["last"] * (theta["W_L"] ** 2).sum()) / 2
        assert (found["objective"] - found["loss"])[trial].item() == pytest.approx(penalty, rel=1e-10)
        loss = 0.0
        for sample, label in zip(trainer.x_NI.numpy(), trainer.labels_N.tolist(), strict=True):
            output = reference(theta, columns_of(sample, is_text), attention_layers, mlp_layers, pre_norm, 2)[1]
            loss += (np.log(np.exp(output).sum()) - output[label]) / SAMPLES
        assert found["loss"][trial].item() == pytest.approx(loss, rel=1e-10)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@on_patches_and_tokens
@every_architecture
@pytest.mark.slow
def test_fused_is_alone_bitwise(attention_layers, mlp_layers, pre_norm, is_text, optimizer):
    network = network_of(attention_layers, mlp_layers, pre_norm, is_text=is_text)
    fused = trainer_of(network, [0, 1, 2], is_text, torch.float32, optimizer)
    alone = [trainer_of(network, [seed], is_text, torch.float32, optimizer) for seed in (0, 1, 2)]
    for _ in range(20):
        losses = torch.cat([trainer.step() for trainer in alone])
        assert torch.equal(fused.step(), losses)
    for trial, trainer in enumerate(alone):
        assert torch.equal(fused.theta_TP[trial : trial + 1], trainer.theta_TP)
        for name, values in fused.evaluate().items():
            assert torch.equal(values[trial : trial + 1], trainer.evaluate()[name])


@on_patches_and_tokens
def test_large_sets_are_evaluated_in_parts(is_text):
    many = EVALUATION_ROWS // POSITIONS + 5
    network = network_of(1, 1, False, is_text=is_text)
    trainer = trainer_of(network, [0], is_text, num_samples=many)
    found = trainer.evaluate()
    parameters, x_TNI = trainer.parameters(), trainer.x_NI.unsqueeze(0)
    expected = torch.nn.functional.cross_entropy(network.logits(parameters, x_TNI)[0], trainer.labels_N)
    assert found["loss"].item() == pytest.approx(expected.item(), rel=1e-12)
    for part, whole in zip(trainer.features(0), network.features(parameters, x_TNI), strict=True):
        torch.testing.assert_close(part, whole)


def test_token_embeddings_ignore_vocabulary_size():
    trainer = trainer_of(network_of(1, 1, False, is_text=True), [0], True)
    parameters = trainer.parameters()
    for name in ("W_e", "W_p"):
        assert 0.5 < parameters[name].abs().max().item() <= 1
    assert parameters["W_1,QK"].abs().max().item() <= 1 / math.sqrt(WIDTH)


def test_patches_are_in_reading_order():
    image_CYX = np.arange(2 * 4 * 6).reshape(2, 4, 6)
    cut = cut_into_patches(image_CYX.reshape(1, -1), (2, 4, 6), 2).reshape(6, 2, 2, 2)
    for patch in range(6):
        row, column = 2 * (patch // 3), 2 * (patch % 3)
        assert np.array_equal(cut[patch], image_CYX[:, row : row + 2, column : column + 2])
