"""Properties that every architecture has by its definition, whatever its weights: no reference implementation is needed."""

import itertools

import pytest
import torch

from depthrate.tasks.networks import operations
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.training.trainer import FusedTrainer
from depthrate.tasks.training.training_plan import Hyperparameters
from tests.support.native_trials import plan_of, transformer_of

WIDTH, POSITIONS, PATCH, CLASSES, SAMPLES, DEPTH = 6, 5, 3, 4, 8, 3
RESIDUAL, TRANSFORMERS = ("rn1", "rn2"), ("t11", "t12", "t21", "t22")
every_architecture = pytest.mark.parametrize("arch", RESIDUAL + TRANSFORMERS)
every_transformer = pytest.mark.parametrize("arch", TRANSFORMERS)
post_and_pre = pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])


def network_of(arch, pre_norm, depth=DEPTH, positions=POSITIONS):
    shared = {"depth": depth, "width": WIDTH, "last_bias": True}
    if arch in RESIDUAL:
        shape = {"pre_norm": pre_norm, "num_classes": CLASSES, "input_dimensions": POSITIONS * PATCH}
        return ResidualNetwork(linear_layers=int(arch[2]), **shape, **shared)
    x, y = (int(digit) for digit in arch[1:])
    return transformer_of(x, y, pre_norm, patch=PATCH, positions=positions, classes=CLASSES, **shared)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters_of(network):
    return {spec.name: random(1, *spec.shape, seed=n) for n, spec in enumerate(network.parameter_specs())}


def inputs():
    return random(1, SAMPLES, POSITIONS * PATCH, seed=99)


def is_of_a_block(name):
    return name[2:].split(",")[0].isdecimal() and name[2:] != "0"


@post_and_pre
@every_architecture
def test_blocks_whose_weights_are_zero_change_nothing(arch, pre_norm):
    network = network_of(arch, pre_norm)
    parameters = parameters_of(network)
    assert len({*network.features(parameters, inputs())}) == DEPTH + (arch in TRANSFORMERS)
    silent = {name: torch.zeros_like(p) if is_of_a_block(name) else p for name, p in parameters.items()}
    first, *later = network.features(silent, inputs())
    assert later
    for layer in later:
        torch.testing.assert_close(layer, first)
    expected = first[0] @ silent["W_L"][0].T + silent["b_L"][0]
    torch.testing.assert_close(network.logits(silent, inputs())[0], expected)


@post_and_pre
@every_architecture
def test_block_changes_later_layers_only(arch, pre_norm):
    network = network_of(arch, pre_norm)
    parameters = parameters_of(network)
    before = list(network.features(parameters, inputs()))
    blocks = DEPTH if arch in TRANSFORMERS else DEPTH - 1
    for block in range(1, blocks + 1):
        own = {name for name in parameters if is_of_a_block(name) and name[2:].split(",")[0] == str(block)}
        changed = {name: p + 0.1 if name in own else p for name, p in parameters.items()}
        same = [torch.equal(a, b) for a, b in zip(before, network.features(changed, inputs()), strict=True)]
        assert same == [True] * block + [False] * (blocks + 1 - block)


@post_and_pre
@every_architecture
def test_layer_norm_before_linear_maps(arch, pre_norm):
    network = network_of(arch, pre_norm)
    for layer in network.features(parameters_of(network), inputs()):
        torch.testing.assert_close(layer.sum(-1), torch.zeros_like(layer[..., 0]))
        torch.testing.assert_close(layer.norm(dim=-1), torch.full_like(layer[..., 0], WIDTH**0.5))


@pytest.fixture
def layer_norms(monkeypatch):
    """What each LayerNorm of a forward pass read and gave, in order."""
    calls = []
    original = operations.layer_norm

    def recording(x, *eps):
        calls.append((x, original(x, *eps)))
        return calls[-1][1]

    monkeypatch.setattr(operations, "layer_norm", recording)
    return calls


@every_architecture
def test_pre_and_post_norm_branches(arch, layer_norms):
    """With weights of zero a branch adds zero, so the next LayerNorm reads just what the branch was added to."""
    branches = 2 * DEPTH if arch in TRANSFORMERS else DEPTH - 1
    for pre_norm in (False, True):
        network = network_of(arch, pre_norm)
        silent = {n: torch.zeros_like(p) if is_of_a_block(n) else p for n, p in parameters_of(network).items()}
        layer_norms.clear()
        network.logits(silent, inputs())
        # residual post: LN of the embedding, then one a branch; else one before each branch and one before the last layer
        after_embedding = 1 if pre_norm or arch in RESIDUAL else 0
        before_last = 0 if arch in RESIDUAL and not pre_norm else 1
        assert len(layer_norms) == after_embedding + branches + before_last
        chain = layer_norms[after_embedding:] if pre_norm else layer_norms
        for (read, given), (next_read, _) in itertools.pairwise(chain):
            last = (slice(None), slice(None), -1) if next_read.shape != read.shape else ()
            assert torch.equal(next_read, (read if pre_norm else given)[last])


@post_and_pre
def test_rn1_branch_only_adds(pre_norm, layer_norms):
    network = network_of("rn1", pre_norm)
    network.logits(parameters_of(network), inputs())
    if pre_norm:
        streams = [read for read, _ in layer_norms[1:]]
        added = [after - before for before, after in itertools.pairwise(streams)]
    else:
        added = [after[0] - before[1] for before, after in itertools.pairwise(layer_norms)]
    assert len(added) == DEPTH - 1
    for branch in added:
        assert (branch >= -1e-12).all() and (branch > 0.1).any() and (branch.abs() < 1e-12).any()


@post_and_pre
@every_transformer
def test_a_prefix_is_processed_as_if_nothing_followed(arch, pre_norm):
    """The causal mask: position s of a sequence is the last position of the network that reads s + 1 positions only."""
    whole = network_of(arch, pre_norm)
    parameters = parameters_of(whole)
    *_, hidden = whole._stream(parameters, inputs())
    for length in range(1, POSITIONS + 1):
        short = network_of(arch, pre_norm, positions=length)
        prefix = inputs()[:, :, : length * PATCH]
        own = {**parameters, "W_p": parameters["W_p"][:, :, :length]}
        *_, end = short.features(own, prefix)
        torch.testing.assert_close(operations.layer_norm(hidden[:, :, length - 1]), end)


@post_and_pre
@every_transformer
def test_attention_takes_a_weighted_mean(arch, pre_norm):
    """If all positions are alike, any weights that sum to one give the same: the length does not matter."""
    outputs = []
    for positions in (1, POSITIONS):
        network = network_of(arch, pre_norm, positions=positions)
        parameters = {**parameters_of(network), "W_p": torch.zeros(1, WIDTH, positions, dtype=torch.float64)}
        outputs.append(network.logits(parameters, inputs()[:, :, :PATCH].repeat(1, 1, positions)))
    torch.testing.assert_close(*outputs)


@post_and_pre
@every_transformer
def test_position_embedding_and_mask_give_order(arch, pre_norm):
    """Without W_p one block's last position sees earlier ones as a set; a second block sees what the mask made of them."""
    order = torch.tensor([2, 0, 3, 1, 4])
    permuted = inputs().view(1, SAMPLES, POSITIONS, PATCH)[:, :, order].flatten(2)
    for depth, has_positions, is_same in ((1, False, True), (1, True, False), (2, False, False)):
        network = network_of(arch, pre_norm, depth=depth)
        parameters = parameters_of(network)
        if not has_positions:
            parameters["W_p"] = torch.zeros_like(parameters["W_p"])
        before, after = network.logits(parameters, inputs()), network.logits(parameters, permuted)
        assert torch.allclose(before, after, rtol=1e-10) == is_same


@every_transformer
def test_attention_scale_is_root_width(arch):
    """Two positions and known scores: the share of the first is a logistic function of their difference over root d."""
    network = network_of(arch, False, depth=1, positions=2)
    eye, zero = torch.eye(WIDTH, dtype=torch.float64), torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    z_SD = random(2, WIDTH, seed=5)
    parameters = {
        name: (eye if "," in name and name.split(",")[1] in ("QK", "VO", "Q", "K", "V", "O") else zero)[None]
        for name in parameters_of(network)
    }
    scores_S = z_SD @ z_SD[1]
    share = torch.sigmoid((scores_S[0] - scores_S[1]) / WIDTH**0.5)
    found = network._attention(parameters, 1, z_SD.view(1, 1, 2, WIDTH))[0, 0]
    torch.testing.assert_close(found[1], share * z_SD[0] + (1 - share) * z_SD[1])
    torch.testing.assert_close(found[0], z_SD[0])


@post_and_pre
@every_architecture
def test_objective_scales_exactly_regularised_weights(arch, pre_norm):
    """d/ds of (objective - loss) at theta -> s theta, s = 1, is lambda ||theta||^2 where theta counts, and 0 elsewhere."""
    hidden_decay, last_decay, step = 0.3, 0.7, 1e-5
    plan = plan_of(schedule="constant", num_steps=1, dtype=torch.float64)
    decays = {"hidden": hidden_decay, "last": last_decay}
    trial = Hyperparameters(seed=1, lr=0.1, momentum=0.9, weight_decays=decays)
    labels_N = torch.arange(SAMPLES) % CLASSES
    trainer = FusedTrainer(network_of(arch, pre_norm), plan, [trial], inputs()[0], labels_N)

    def penalty():
        found = trainer.evaluate()
        return (found["objective"] - found["loss"]).item()

    for name, parameter in trainer.parameters().items():
        original = parameter.clone()
        ends = []
        for scale in (1 - step, 1 + step):
            parameter.copy_(scale * original)
            ends.append(penalty())
        parameter.copy_(original)
        decay = last_decay if name == "W_L" else hidden_decay
        counts = name.startswith("W") and name not in ("W_0", "W_e", "W_p")
        expected = decay * original.square().sum().item() if counts else 0.0
        assert (ends[1] - ends[0]) / (2 * step) == pytest.approx(expected, rel=1e-6, abs=1e-9), name
