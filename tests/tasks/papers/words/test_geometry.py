"""Types of collapse are recognised on embeddings made so, with noise, and on no random ones."""

import pytest
import torch

from depthrate.tasks.papers.words import word_geometry as geometry

CONCEPTS, WORDS, LENGTH, CLASSES, WIDTH = 3, 40, 5, 60, 20


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def directions(mean_zero):
    """[C, D] equiangular, in random directions."""
    basis = normal(WIDTH, CONCEPTS, seed=3)
    basis = basis - basis.mean(0) if mean_zero else basis
    frame = torch.linalg.qr(basis)[0]
    centred = (torch.eye(CONCEPTS, dtype=torch.float64) - 1 / CONCEPTS) @ frame.T
    return centred / centred.norm(dim=1, keepdim=True)


CONCEPTS_KL = torch.randint(CONCEPTS, (CLASSES, LENGTH), generator=torch.Generator().manual_seed(5))


def network(norms, noise, mean_zero=False):
    """Words of these norms [S] and blocks, noise of this relative size on both."""
    f = directions(mean_zero)
    words = norms.repeat(CONCEPTS).unsqueeze(1) * (
        f.repeat_interleave(WORDS, dim=0) + noisy(CONCEPTS * WORDS, noise, 1)
    )
    blocks = 0.3 * (f[CONCEPTS_KL] + noisy(CLASSES * LENGTH, noise, 2).view(CLASSES, LENGTH, WIDTH))
    return words, blocks


def noisy(count, noise, seed):
    return noise * normal(count, WIDTH, seed=seed) / WIDTH**0.5


def verdict(words, blocks, layer_norm=False):
    if layer_norm:
        words = torch.nn.functional.layer_norm(words, (WIDTH,), eps=1e-12)
    of_words, of_blocks = geometry.words_of(words, CONCEPTS), geometry.blocks_of(blocks, CONCEPTS_KL, CONCEPTS)
    found = geometry.scores(of_words, of_blocks, CONCEPTS, layer_norm=layer_norm)
    return geometry.collapse_type(found), found


EVEN, BY_RANK = torch.full((WORDS,), 1.4, dtype=torch.float64), torch.arange(1, WORDS + 1, dtype=torch.float64) ** -0.6


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.1])
def test_each_type_is_recognised(noise):
    assert verdict(*network(EVEN, noise))[0] == 1
    assert verdict(*network(BY_RANK, noise))[0] == 3
    assert verdict(*network(BY_RANK, noise, mean_zero=True), layer_norm=True)[0] == 2


def test_collapse_scores_zero_or_noise():
    assert verdict(*network(EVEN, 0.0))[1] == pytest.approx({"collapse_1": 0, "collapse_3": 0}, abs=1e-12)
    assert verdict(*network(BY_RANK, 0.0))[1]["collapse_1"] > 0.5
    assert verdict(*network(EVEN, 0.1))[1]["collapse_1"] == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_random_weights_are_of_no_type(seed):
    words, blocks = normal(CONCEPTS * WORDS, WIDTH, seed=seed), normal(CLASSES, LENGTH, WIDTH, seed=seed + 100)
    assert verdict(words, blocks)[0] == 0 and verdict(words, blocks, layer_norm=True)[0] == 0


def test_one_broken_condition_is_enough():
    words, blocks = network(EVEN, 0.02)
    f = directions(False)
    turned = torch.linalg.qr(normal(WIDTH, WIDTH, seed=9))[0]
    uneven = words.clone()
    uneven[:WORDS] *= 2  # one concept's words are longer, so that words of one rank differ
    askew = words + 0.6 * f[0]  # no longer equiangular
    assert [verdict(w, b)[0] for w, b in ((words @ turned, blocks), (uneven, blocks), (askew, blocks))] == [0, 0, 0]
    assert verdict(words, blocks[torch.randperm(CLASSES, generator=torch.Generator().manual_seed(0))])[0] == 0


def test_rotation_and_scale_invariance():
    words, blocks = network(BY_RANK, 0.1)
    turned = torch.linalg.qr(normal(WIDTH, WIDTH, seed=9))[0]
    assert verdict(words @ turned, 3 * blocks @ turned)[1] == pytest.approx(verdict(words, blocks)[1], rel=1e-9)


def test_values_equal_principal_components():
    words, _ = network(BY_RANK, 0.1)
    labels = torch.arange(CONCEPTS).repeat_interleave(WORDS)
    values, shown = geometry.principal_values(words + 5), geometry.projection(words + 5, labels)
    assert shown.square().sum(0).sqrt().numpy()[2] == pytest.approx(values[2].item(), rel=1e-9)
    assert shown[:, :2].square().sum().item() == pytest.approx(values[:2].square().sum().item(), rel=1e-9)
    means = torch.stack([shown[labels == concept].mean(0) for concept in range(CONCEPTS)])
    assert means[0, 0] > 0 and abs(means[0, 1]) < 1e-9 and means[1, 1] >= 0
    assert geometry.projection(words * 1e200, labels).shape == shown.shape, "whose squares are infinite"
    assert geometry.principal_values(words / 0).isnan().all()


def test_missing_concept_skips_the_blocks():
    words, blocks = network(EVEN, 0.0)
    assert geometry.blocks_of(blocks, CONCEPTS_KL.clamp(max=1), CONCEPTS) is None
    assert geometry.scores(geometry.words_of(words, CONCEPTS), None, CONCEPTS, layer_norm=False) == {}
    assert geometry.collapse_type({}) == 0
