"""The three theorems against science's digits, and against exact enumeration of small settings."""

import itertools
import math

import numpy as np
import pytest
import torch

from depthrate.tasks.papers.words.theory import (
    PredictionSource,
    Setting,
    frequencies,
    mean_field,
    predict,
    risk,
    theorem_1,
    theorem_2,
    theorem_2_holds,
    theorem_3,
)


def setting(zipf=0.0, **changes):
    """The paper's setting, changed."""
    values = {"concepts": 3, "vocabulary_size": 1200, "sentence_length": 15, "sequences": 1000}
    values |= {"weight_decay": 0.001, "width": 100} | changes
    return Setting(**values, frequencies=frequencies(values["vocabulary_size"] // values["concepts"], zipf))


def test_norms_of_the_papers_settings():
    found = predict(setting(), layer_norm=False)
    assert found.source is PredictionSource.THEOREM_1
    assert found.word_norms == pytest.approx(np.full(400, 1.42214), abs=5e-6)
    assert found.linear_norm == pytest.approx(0.40224, abs=5e-6)
    fewer = predict(setting(sequences=50), layer_norm=False)
    assert (fewer.word_norms[0], fewer.linear_norm) == pytest.approx((0.61602, 0.77922), abs=5e-6)
    normed = predict(setting(zipf=1.0), layer_norm=True)
    assert normed.source is PredictionSource.THEOREM_3 and normed.word_norms[0] == 10
    assert normed.linear_norm == pytest.approx(0.097547, abs=5e-7)


def test_mean_field_of_the_papers_zipf_setting():
    """Theorem 2 would need lambda < 1.152e-4 there, so it does not speak of Figure 4(a) and (b)."""
    found = predict(setting(zipf=1.0), layer_norm=False)
    assert found.source is PredictionSource.MEAN_FIELD
    assert not theorem_2_holds(setting(zipf=1.0)) and not theorem_2_holds(setting(zipf=1.0, weight_decay=1.2e-4))
    assert theorem_2_holds(setting(zipf=1.0, weight_decay=1.15e-4))
    assert (math.sqrt(np.square(found.word_norms).mean()), found.linear_norm) == pytest.approx((0.990, 0.280), abs=5e-4)
    ranks = found.word_norms[[0, 4, 49, 399]]
    assert np.abs(ranks - [6.83, 4.05, 1.12, 0.185]).max() < 5e-3
    assert (np.diff(found.word_norms) < 0).all(), "frequent words get longer embeddings"


def test_uniform_mean_field_is_theorem_1():
    one, other = theorem_1(setting()), mean_field(setting())
    assert other.word_norms == pytest.approx(one.word_norms, rel=1e-5)
    found = other.linear_norm, other.loss, other.objective
    assert found == pytest.approx((one.linear_norm, one.loss, one.objective), rel=1e-5)


def equiangular(concepts, width):
    """[C, width] of norm 1 and mean 0 over the width, with cosines -1/(C - 1), in no special direction."""
    centred = torch.eye(concepts, dtype=torch.float64) - 1 / concepts
    simplex = torch.zeros(concepts, width, dtype=torch.float64)
    simplex[:, :concepts] = centred / centred.norm(dim=1, keepdim=True)
    basis = torch.eye(width, dtype=torch.float64) - 1 / width
    basis[:, 0] = 1
    turn = torch.randn(width - 1, width - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ortho = torch.linalg.qr(basis[:, [0, *range(1, width)]])[0]
    inside = ortho[:, 1:] @ torch.linalg.qr(turn)[0]  # an orthonormal basis of the vectors of mean 0
    frame = torch.linalg.qr(inside)[0]
    coordinates = torch.linalg.svd(simplex, full_matrices=False)
    return (coordinates.U[:, : concepts - 1] * coordinates.S[: concepts - 1]) @ frame[:, : concepts - 1].T


class Enumerated:
    """The risk of a small setting by going through every sentence of every sequence."""

    def __init__(self, given):
        self.given = given
        concepts, words = given.concepts, len(given.frequencies)
        self.sequences = list(itertools.product(range(concepts), repeat=given.sentence_length))
        assert len(self.sequences) == given.sequences
        ranks = list(itertools.product(range(words), repeat=given.sentence_length))
        shares = torch.tensor([math.prod(given.frequencies[list(rank)]) for rank in ranks], dtype=torch.float64)
        sentences = [[[words * a + b for a, b in zip(z, rank, strict=True)] for rank in ranks] for z in self.sequences]
        self.words_KNL, self.share_N = torch.tensor(sentences), shares

    def start(self, norms, linear_norm, width):
        f = equiangular(self.given.concepts, width)
        norms = torch.from_numpy(np.asarray(norms)).repeat(self.given.concepts).unsqueeze(1)
        words = norms * f.repeat_interleave(len(self.given.frequencies), dim=0)
        return words.requires_grad_(), (linear_norm * f[torch.tensor(self.sequences)]).requires_grad_()

    def risk(self, words_VD, linear_KLD):
        x_KNM = words_VD[self.words_KNL].flatten(2)
        log_probabilities = torch.log_softmax(x_KNM @ linear_KLD.flatten(1).T, dim=-1)
        picked_KN = log_probabilities[torch.arange(len(self.sequences)), :, torch.arange(len(self.sequences))]
        return -(picked_KN @ self.share_N).mean()


NAMES = ("concepts", "vocabulary_size", "sentence_length", "sequences", "width", "weight_decay")
SIZES = {"two": (2, 4, 3, 8, 4, 0.01), "three": (3, 6, 2, 9, 5, 0.003)}
SMALL = {name: dict(zip(NAMES, sizes, strict=True)) for name, sizes in SIZES.items()}


@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)
def test_theorem_1_by_enumeration(small):
    given = setting(**small)
    found, enumerated = theorem_1(given), Enumerated(given)
    assert found.linear_norm > 0
    words, linear = enumerated.start(found.word_norms, found.linear_norm, given.width)
    loss = enumerated.risk(words, linear)
    objective = loss + given.weight_decay / 2 * (words.square().sum() + linear.square().sum())
    assert (loss.item(), objective.item()) == pytest.approx((found.loss, found.objective), abs=1e-12)
    gradients = torch.autograd.grad(objective, (words, linear))
    assert max(gradient.abs().max().item() for gradient in gradients) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("zipf", [0.0, 1.0], ids=["theorem 1", "theorem 2"])
@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)
def test_no_embedding_does_better_than_the_theorem(small, zipf):
    """Minimised over all weights from a random start, the exact objective and the norms are the theorem's."""
    given = setting(zipf, **small)
    found, enumerated = predict(given, layer_norm=False), Enumerated(given)
    assert found.source is (PredictionSource.THEOREM_2 if zipf else PredictionSource.THEOREM_1)
    generator = torch.Generator().manual_seed(1)
    shapes = [(given.vocabulary_size, given.width), (given.sequences, given.sentence_length, given.width)]
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    tight = {"tolerance_grad": 1e-13, "tolerance_change": 1e-16, "line_search_fn": "strong_wolfe"}
    solver = torch.optim.LBFGS(weights, max_iter=3000, history_size=50, **tight)

    def closure():
        solver.zero_grad()
        objective = enumerated.risk(*weights) + given.weight_decay / 2 * sum(w.square().sum() for w in weights)
        objective.backward()
        return objective

    solver.step(closure)
    assert closure().item() == pytest.approx(found.objective, abs=1e-10)
    norms = weights[0].detach().norm(dim=1)
    assert norms.numpy() == pytest.approx(np.tile(found.word_norms, given.concepts), rel=1e-5)


@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)
def test_theorem_2_by_enumeration(small):
    given = setting(zipf=1.0, **small)
    assert theorem_2_holds(given)
    found, enumerated = predict(given, layer_norm=False), Enumerated(given)
    assert found.source is PredictionSource.THEOREM_2 and found.word_norms[0] > found.word_norms[1] > 0
    words, linear = enumerated.start(found.word_norms, found.linear_norm, given.width)
    loss = enumerated.risk(words, linear)
    objective = loss + given.weight_decay / 2 * (words.square().sum() + linear.square().sum())
    assert max(g.abs().max().item() for g in torch.autograd.grad(objective, (words, linear))) < 1e-10
    assert (loss.item(), objective.item()) == pytest.approx((found.loss, found.objective), abs=1e-6)
    near = mean_field(given)
    assert near.word_norms == pytest.approx(found.word_norms, rel=1e-3), "the mean field is exact where all are classes"


@pytest.mark.parametrize("small", SMALL.values(), ids=SMALL)
def test_theorem_3_by_enumeration(small):
    given = setting(zipf=1.0, **small)
    found, enumerated = theorem_3(given), Enumerated(given)
    words, linear = enumerated.start(found.word_norms, found.linear_norm, given.width)
    features = torch.nn.functional.layer_norm(words, words.shape[-1:], eps=0.0)
    torch.testing.assert_close(features, words.detach(), atol=1e-12, rtol=0)
    loss = enumerated.risk(features, linear)
    objective = loss + given.weight_decay / 2 * linear.square().sum()
    assert (loss.item(), objective.item()) == pytest.approx((found.loss, found.objective), abs=1e-12)
    assert max(g.abs().max().item() for g in torch.autograd.grad(objective, (words, linear))) < 1e-10


def test_unlearnable_minimiser_is_zero():
    strong = setting(weight_decay=1.0)
    found = theorem_1(strong)
    assert found.linear_norm == 0
    assert found.loss == pytest.approx(risk(strong, 0.0)) == pytest.approx(math.log(1000), abs=1e-3)
    assert (mean_field(setting(weight_decay=1.0, zipf=1.0)).word_norms == 0).all()


def test_theorem_2_says_where_it_does_not_hold():
    with pytest.raises(ValueError, match="Theorem 2 does not hold: 1000 of 3\\^15 sequences"):
        theorem_2(setting(zipf=1.0))
    with pytest.raises(ValueError, match="weight_decay is 0.5. Use all sequences, and a weight decay with"):
        theorem_2(setting(**SMALL["two"] | {"weight_decay": 0.5}))
