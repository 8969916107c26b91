"""Next tokens: the chain's entropy, each position's output, what is measured against a plain reference, and what is refused."""

import io
import itertools
import math
import os
import tarfile

import numpy as np
import pytest
import torch
from torch import nn

from depthrate.sweeps.expand import expand
from depthrate.sweeps.load import sweep_of_spec
from depthrate.tasks.data import reviews
from depthrate.tasks.data.markov import chain
from depthrate.tasks.data.sources import DatasetError
from depthrate.tasks.loading import load_task
from depthrate.tasks.measures.token_classes import ClassMoments
from depthrate.tasks.supervised.task import NEXT_TOKEN
from tests.support.native_trials import transformer_of
from tests.support.own_data import Folder
from tests.support.training_context import Context, assert_same, ids_of, run_pack, run_resumed

SMALL = {
    "arch": "t11",
    "width": 8,
    "vocabulary_size": 7,
    "context_length": 5,
    "samples": 40,
    "min_class_count": 5,
    "steps": 12,
    "batch_size": 16,
    "lr": 0.1,
}
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, depth, width, vocabulary_size):
        super().__init__()
        self.embed = nn.Embedding(vocabulary_size, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, vocabulary_size)

    def forward(self, x):
        h = self.embed(x).cumsum(1)
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.head(h)


class Gpt(nn.Module):
    def __init__(self, depth, width, vocabulary_size, context_length):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary_size, width), nn.Embedding(context_length, width)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True) for _ in range(depth)]
        )
        self.head = nn.Linear(width, vocabulary_size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context_length))

    def forward(self, x):
        h = self.tokens(x) + self.places.weight
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return self.head(h)


class Last(Net):
    def forward(self, x):
        return super().forward(x)[:, -1]


class Swapped(Net):
    def forward(self, x):
        return super().forward(x).transpose(1, 2)


class Pooled(Net):
    def __init__(self, depth, width, vocabulary_size):
        super().__init__(depth, width, vocabulary_size)
        self.other = nn.ModuleList([nn.Identity()])

    def forward(self, x):
        h = self.other[0](self.embed(x)[:, 0])
        return super().forward(x) + self.head(h).unsqueeze(1)


class Peeking(Net):
    def forward(self, x):
        return super().forward(x) + self.head(self.embed(x).mean(1, keepdim=True))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(NET)
    tokens = chain(6, order=1, zipf=1, sharpness=2, seed=0).sequences(50, 9, np.random.default_rng(0))
    x, y = tokens[:, :-1], tokens[:, 1:]
    (tmp_path / "data.py").write_text(MAKE.replace("FOLDER", str(tmp_path)))
    np.savez(tmp_path / "mine.npz", x=x[:40], y=y[:40], x_test=x[40:], y_test=y[40:], vocabulary_size=6)
    return tmp_path


MAKE = """
import numpy as np


def make(wrong: str = ""):
    given = np.load("FOLDER/mine.npz")
    x, y = given["x"], given["y"]
    made = {"x": x, "y": y[:, :-1] if wrong == "y" else y, "x_test": given["x_test"], "y_test": given["y_test"]}
    return made if wrong == "size" else {**made, "vocabulary_size": 6}
"""


def sweep_in(folder, grid=None, **params):
    given = {key: value for key, value in {**SMALL, **params}.items() if value != "none"}
    spec = {"name": "s", "task": "next_token", "params": given, "grid": grid or {"depth": [2]}, "seeds": 2}
    return sweep_of_spec(spec, folder)


def pack_of(sweep):
    task = sweep.load_task()
    return task, [trial.params for trial in expand(sweep, task)]


def trainer_of(folder, **params):
    task, pack = pack_of(sweep_in(folder, **params))
    training = task.training([task.read(item) for item in pack], Folder("."))
    return training, training.begin()


@pytest.mark.parametrize("order", [1, 2])
def test_floor_is_the_least_loss(order):
    found, length = chain(4, order=order, zipf=1.3, sharpness=2, seed=3), 4
    np.testing.assert_allclose(found.transition_VV.sum(1), 1, rtol=1e-14)
    np.testing.assert_allclose(found.stationary_V @ found.transition_VV, found.stationary_V, rtol=1e-12)
    np.testing.assert_allclose(found.stationary_V[0] / found.stationary_V[2], 3**1.3)
    probability = {}
    for tokens in itertools.product(range(4), repeat=length + 1):
        p = 1.0
        for place, token in enumerate(tokens):
            p *= found.stationary_V[token] if place < order else found.transition_VV[tokens[place - order], token]
        probability[tokens] = p

    def entropy(seen):
        """Of the first tokens of a sequence."""
        sums = {}
        for tokens, p in probability.items():
            sums[tokens[:seen]] = sums.get(tokens[:seen], 0) + p
        return -sum(p * math.log(p) for p in sums.values())

    by_position = [entropy(place + 1) - entropy(place) for place in range(1, length + 1)]
    assert found.floor(length) == pytest.approx(np.mean(by_position), rel=1e-12)


def test_sequences_extend_the_chain():
    found = chain(5, order=2, zipf=1, sharpness=1.5, seed=1)
    tokens = found.sequences(20_000, 6, np.random.default_rng(0))
    np.testing.assert_array_equal(found.sequences(7, 6, np.random.default_rng(0)), tokens[:7])
    for place in range(6):
        share_V = np.bincount(tokens[:, place], minlength=5) / len(tokens)
        np.testing.assert_allclose(share_V, found.stationary_V, atol=5 * 0.5 / len(tokens) ** 0.5)
    pairs = np.zeros((5, 5))
    np.add.at(pairs, (tokens[:, 2], tokens[:, 4]), 1 / len(tokens))
    np.testing.assert_allclose(
        pairs, found.stationary_V[:, None] * found.transition_VV, atol=5 * 0.5 / len(tokens) ** 0.5
    )


def test_knowing_the_chain_reaches_the_floor(folder):
    """What the trainer calls loss_gap is 0 for the chain's own probabilities, but for the draw of the sequences."""
    _, trainer = trainer_of(folder, samples=4000, context_length=8, width=7, weight_decay=0.0)
    chain_ = chain(7, order=1, zipf=1.0, sharpness=2.0, seed=0)
    logits_VV = torch.as_tensor(np.log(chain_.transition_VV))
    trainer.network = _Table(logits_VV)
    scores = trainer.scores()
    spread = 3 / (4000 * 8) ** 0.5  # a token's cross-entropy has a standard deviation of some 1.2
    assert abs(scores["loss_gap"][0].item()) < 4 * spread
    assert scores["perplexity"][0].item() == pytest.approx(math.exp(scores["loss"][0].item()))
    trainer.network = _Table(logits_VV + torch.randn(7, 7, generator=torch.Generator().manual_seed(0)))
    assert trainer.scores()["loss_gap"][0].item() > 0.1


class _Table:
    """Looks the next token's probabilities up."""

    rows_per_sample = 8

    def __init__(self, logits_VV):
        self._logits_VV = logits_VV

    def logits(self, parameters, x_TNS, state):
        return self._logits_VV[x_TNS]


@pytest.mark.parametrize("pre_norm", [False, True])
def test_position_equals_its_prefix_s_last(pre_norm):
    def network(positions, every_position):
        shape = {"vocabulary": 5, "width": 6, "positions": positions}
        return transformer_of(2, 2, pre_norm, **shape, every_position=every_position)

    generator = torch.Generator().manual_seed(0)
    whole, x_TNS = network(4, True), torch.randint(5, (2, 3, 4), generator=generator)
    specs = whole.parameter_specs()
    parameters = {s.name: torch.randn(2, *s.shape, generator=generator, dtype=torch.float64) for s in specs}
    logits, features = whole.logits(parameters, x_TNS), list(whole.features(parameters, x_TNS))
    assert logits.shape == (2, 3, 4, 5) and [layer.shape for layer in whole.layers()] == [(4, 6)] * 3
    for place in range(4):
        last = network(place + 1, False)
        own = parameters | {"W_p": parameters["W_p"][:, :, : place + 1]}
        torch.testing.assert_close(logits[:, :, place], last.logits(own, x_TNS[..., : place + 1]))
        for ours, expected in zip(features, last.features(own, x_TNS[..., : place + 1]), strict=True):
            torch.testing.assert_close(ours[:, :, place], expected)


def test_steps_are_those_of_torch(folder):
    given = {"arch": "./model.py:Net", "dtype": "float64", "batch_size": 8, "weight_decay": 0.01, "steps": 3}
    _, trainer = trainer_of(folder, **given, layers="blocks.*")
    namespace = {}
    exec(NET, namespace)
    module = namespace["Net"](2, 8, 7).double()
    with torch.no_grad():
        for name, own in module.named_parameters():
            own.copy_(trainer.parameters()[name][0])
    decayed = [{"params": [p for p in module.parameters() if p.ndim == 2], "weight_decay": 0.01}]
    optimizer = torch.optim.SGD(
        [*decayed, {"params": [p for p in module.parameters() if p.ndim == 1]}], lr=0.1, momentum=0.9
    )

    def loss(rows):
        return nn.functional.cross_entropy(module(trainer.x_NI[rows]).flatten(0, 1), trainer.labels_N[rows].flatten())

    found, everything = trainer.evaluate(), torch.arange(40)
    assert found["loss"][0].item() == pytest.approx(loss(everything).item())
    right = module(trainer.x_NI).argmax(-1) == trainer.labels_N
    assert found["accuracy"][0].item() == pytest.approx(right.double().mean().item())
    order = trainer.next_order()[0]
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = trainer.lr_at(step)[0]
        optimizer.zero_grad()
        loss(order[step * 8 : step * 8 + 8]).backward()
        optimizer.step()
        trainer.step()
    for name, own in module.named_parameters():
        torch.testing.assert_close(trainer.parameters()[name][0], own.detach(), rtol=1e-9, atol=1e-12)


def reference(h_MD, labels_M, predicted_M, classes, weight_VD):
    """The measurements class by class and pair by pair, from their formulas."""
    h_MD = h_MD.astype(np.float64)
    mean = {k: h_MD[labels_M == k].mean(0) for k in classes}
    variance = {k: ((h_MD[labels_M == k] - mean[k]) ** 2).sum(1).mean() for k in classes}
    middle = np.mean([mean[k] for k in classes], axis=0)
    within = sum(np.outer(h - mean[k], h - mean[k]) for h, k in zip(h_MD, labels_M, strict=True)) / len(h_MD)
    between = sum(np.outer(mean[k] - middle, mean[k] - middle) for k in classes) / len(classes)
    unit = {k: (mean[k] - middle) / np.linalg.norm(mean[k] - middle) for k in classes}
    pairs = list(itertools.combinations(classes, 2))
    nearest = np.array([min(classes, key=lambda k: ((h - mean[k]) ** 2).sum()) for h in h_MD])
    found = {
        "nc1": np.trace(within) / np.trace(between),
        "nc1_pinv": np.trace(within @ np.linalg.pinv(between, rcond=1e-12, hermitian=True)) / len(classes),
        "cdnv": np.mean([(variance[k] + variance[m]) / (2 * ((mean[k] - mean[m]) ** 2).sum()) for k, m in pairs]),
        "nc2_norms": np.std([np.log(np.linalg.norm(mean[k] - middle)) for k in classes]),
        "nc2_angles": np.std([unit[k] @ unit[m] for k, m in pairs]),
        "gnc2": np.std([np.log(1 / np.linalg.norm(unit[k] - unit[m])) for k, m in pairs]),
        "ncc_accuracy": (nearest == labels_M).mean(),
        "nc4": (nearest == predicted_M).mean(),
    }
    if weight_VD is not None and weight_VD.shape[1] == h_MD.shape[1]:
        cosines = [weight_VD[k] @ unit[k] / np.linalg.norm(weight_VD[k]) for k in classes]
        found |= {"nc3_means": 1 - np.mean(cosines), "unc3": np.std(cosines)}
    return found


@pytest.mark.parametrize("positions", ["all", "last"])
@pytest.mark.parametrize("arch", ["t11", "t22", "./model.py:Net"])
def test_metrics_equal_those_of_frequent_classes(folder, arch, positions, monkeypatch):
    # more classes than dimensions; the parts in which sequences and pairs come are not to be seen
    monkeypatch.setattr("depthrate.tasks.training.training_plan.EVALUATION_ROWS", 35)
    monkeypatch.setattr("depthrate.tasks.measures.token_classes.PAIRS_PER_BLOCK", 20)
    given = {} if arch != "./model.py:Net" else {"layers": "blocks.*"}
    given |= {"width": 6, "vocabulary_size": 12, "samples": 150, "min_class_count": 7}
    training, trainer = trainer_of(folder, arch=arch, positions=positions, **given)
    assert trainer.samples_per_evaluation() == 7
    for _ in range(3):
        trainer.step()
    (rows,) = training.measure(trainer, [1], 3)
    place = slice(None) if positions == "all" else slice(-1, None)
    labels = trainer.labels_N[:, place].numpy()
    classes = [token for token in range(12) if (labels == token).sum() >= 7]
    assert 6 < len(classes) < 12 or positions == "all"
    kept = np.isin(labels, classes)
    predicted = np.array(classes)[trainer.outputs(1)[0, :, place][..., classes].argmax(-1).numpy()]
    weight_VD = trainer.last_weights()[1].numpy().astype(np.float64)
    features = [h.detach().numpy() for h in trainer.features(1)]
    assert len(rows) == len(features) and [row["is_last"] for row in rows].index(True) == len(rows) - 1
    for row, h_1NSD in zip(rows, features, strict=True):
        expected = reference(h_1NSD[0, :, place][kept], labels[kept], predicted[kept], classes, weight_VD)
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-7), row["layer"]
        assert row["measured_classes"] == len(classes) and row["measured_share"] == pytest.approx(kept.mean())


def test_moments_know_collapse():
    """Means at a simplex's corners, features on them: all is 0 but what is 1."""
    simplex_KD = torch.eye(4, dtype=torch.float64) - 1 / 4
    classes_M = torch.tensor([0, 0, 0, 1, 2, 2, 3])
    moments = ClassMoments(torch.bincount(classes_M), 4)
    moments.add(simplex_KD[classes_M] + 5, classes_M)
    moments.revisit(simplex_KD[classes_M] + 5, classes_M, classes_M.roll(1))
    found = moments.result(2 * simplex_KD)
    assert found.pop("ncc_accuracy") == 1 and found.pop("nc4") == pytest.approx(3 / 7)
    assert found == pytest.approx(dict.fromkeys(found, 0), abs=1e-12) and len(found) == 8
    vast = ClassMoments(torch.bincount(classes_M), 4)
    features_MD = torch.randn(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 1e200
    vast.add(features_MD, classes_M)
    vast.revisit(features_MD, classes_M, classes_M)
    assert math.isnan(vast.result(None)["nc1_pinv"]), "features too large for their squares are measured"


def test_other_numbers_for_the_same_tokens_change_nothing(folder):
    training, trainer = trainer_of(folder, dtype="float64", min_class_count=20)
    trainer.step()
    before, scores = training.measure(trainer, [0], 1)[0], trainer.scores()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(2))
    other = trainer.on_samples(order[trainer.x_NI], order[trainer.labels_N])
    back = torch.argsort(order)
    parameters = other.parameters()
    parameters["W_e"].copy_(parameters["W_e"][:, :, back])
    for name in ("W_L", "b_L"):
        parameters[name].copy_(parameters[name][:, back])
    assert not torch.equal(order, back)
    training.dataset.labels_N[:] = other.labels_N.numpy()
    trial = NEXT_TOKEN.read({"positions": "all", "min_class_count": 20})
    again = NEXT_TOKEN.target.measure(training.dataset, trial, "train")
    for row, expected in zip(again(other, [0], 1)[0], before, strict=True):
        assert {**row, "split": 0} == pytest.approx({**expected, "split": 0}, rel=1e-8)
    assert {k: v[0].item() for k, v in other.scores().items()} == pytest.approx(
        {k: v[0].item() for k, v in scores.items()}
    )


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["t12", "./model.py:Net", "./model.py:Gpt"])
def test_fused_is_alone_and_interrupted(folder, arch):
    own = {} if arch == "t12" else {"layers": "blocks.*"}
    task, pack = pack_of(
        sweep_in(folder, arch=arch, test=True, lr="none", grid={"depth": [2], "lr": [0.1, 0.05]}, **own)
    )
    whole = run_pack(task, pack)
    assert len(whole) == 4 and {row["split"] for row in whole[0].tables["metrics"]} == {"train", "test"}
    alone = run_pack(task, pack[2:3])
    assert alone[0].tables == whole[2].tables
    resumed, _ = run_resumed(task.run, pack, 7)
    assert_same(resumed, whole)
    first, *_, last = (row for row in whole[0].tables["curves"] if row["split"] == "train")
    assert last["loss"] < first["loss"] and last["loss_gap"] < first["loss_gap"]


def test_sequences_of_ones_own_train_any_network(folder):
    for arch in ("t11", "./model.py:Net"):
        own = {"dataset": "./mine.npz", "vocabulary_size": "none", "context_length": "none", "samples": 30}
        task, pack = pack_of(sweep_in(folder, arch=arch, **own))
        assert "order" not in task.schema and len(pack[0]["dataset_hash"]) == 16
        result = run_pack(task, pack)[0]
        curves = result.tables["curves"]
        assert {row["split"] for row in curves} == {"train", "test"} and curves[-1]["loss_gap"] is None
        assert task.data_shape(task.read(pack[0])).num_samples == 30
    assert load_task("next_token") is NEXT_TOKEN


@pytest.mark.slow
def test_streamed_sequences_train_as_held_ones(folder):
    """The orders of the two are drawn alike, and of 40 sequences 40 are measured."""
    own = {"dataset": "./data.py:make", "vocabulary_size": "none", "context_length": "none", "samples": "none"}
    found = []
    for stream in ({"stream": True, "measure_samples": 40}, {"stream": False}):
        task, pack = pack_of(sweep_in(folder, **own, **stream))
        results = run_pack(task, pack)
        found.append(results)
        assert task.data_shape(task.read(pack[0])).labels_tokens
        assert {row["split"] for row in results[0].tables["metrics"]} == {"train", "test"}
    assert_same(*found)
    for wrong, words in (("y", r"shape \[\d+, 7\], expected the next tokens, int 0 to 5"), ("size", "Add vocabulary")):
        with pytest.raises(ValueError, match=words):
            expand(sweep_in(folder, **own, stream=True, wrong=wrong))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Last", r"returns \[2, 7\] for 2 samples, expected a tensor \[N, 5, 7\]"),
        ("Swapped", r"returns \[2, 7, 5\] for 2 samples, expected a tensor \[N, 5, 7\]"),
        ("Peeking", "reads the tokens it predicts"),
        ("Pooled", r"layer other.0 of model:Pooled returns \[8\] for a sequence"),
    ],
)
def test_token_networks_are_required(folder, name, words):
    with pytest.raises(ValueError, match=words):
        expand(sweep_in(folder, arch=f"./model.py:{name}", layers="other.*" if name == "Pooled" else "blocks.*"))


def test_token_rows_suggest_this_task(folder):
    np.savez(folder / "classes.npz", x=np.arange(40).reshape(8, 5) % 7, y=np.arange(8) % 2, vocabulary_size=7)
    params = {"arch": "./model.py:Net", "dataset": "./classes.npz", "width": 8, "depth": 1}
    with pytest.raises(ValueError, match=r"one row per token.* task: next_token"):
        expand(sweep_of_spec({"name": "s", "task": "collapse", "params": params}, folder))


def test_invalid_sequences_are_refused(folder):
    x = np.arange(40).reshape(8, 5) % 7
    wrong = {
        "none": ({"x": x, "y": x}, "Add vocabulary_size"),
        "one": ({"x": x, "y": x[:, 0], "vocabulary_size": 7}, r"y is int64 of shape \[8\].*text\[:, 1:\]"),
        "many": ({"x": x, "y": x, "vocabulary_size": 6}, "expected int 0 to 5"),
        "float": ({"x": x * 1.0, "y": x, "vocabulary_size": 7}, "x is float64"),
        "short": ({"x": x, "y": x[:, 1:], "vocabulary_size": 7}, r"x has shape \[8, 5\], y \[8, 4\]"),
    }
    own = {"vocabulary_size": "none", "context_length": "none", "samples": 8, "batch_size": "none"}
    for name, (arrays, words) in wrong.items():
        np.savez(folder / f"{name}.npz", **arrays)
        with pytest.raises(ValueError, match=words):
            expand(sweep_in(folder, dataset=f"./{name}.npz", **own))
    for params, words in (
        ({"dataset": "./mine.npz", **own, "samples": 41}, "samples is 41, but 'mine.npz' has 40"),
        ({"loss": "mse"}, "unknown parameter 'loss'"),
        ({"arch": "rn1"}, "'arch' is 'rn1', expected one of t11"),
        ({"dataset": "imdb", "order": 2}, "order is 2, but 'imdb'"),
        ({"batch_size": 41}, "batch_size is 41"),
    ):
        with pytest.raises(ValueError, match=words):
            expand(sweep_in(folder, **params))
    with pytest.raises(DatasetError, match="0 tokens come next at 300 or more of 200 measured positions of the split"):
        trainer_of(folder, min_class_count=300)
    trials = [NEXT_TOKEN.schema.fill({**SMALL, "depth": 1, "min_class_count": count}) for count in (5, 300)]
    NEXT_TOKEN.check_contents(trials[:1], Folder("."))
    with pytest.raises(DatasetError, match="0 tokens come next at 300 or more of 200"):
        NEXT_TOKEN.check_contents(trials, Folder("."))


def test_reviews_are_cut_into_stretches(tmp_path, monkeypatch):
    monkeypatch.setattr(reviews, "REVIEWS_PER_CLASS", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / "aclImdb_v1.tar.gz", "w:gz") as archive:
        for number, label in itertools.product(range(3), ("pos", "neg")):
            text = " ".join(["a", "b", "c", "d", "e", f"x{number}", "a"][: 7 - number]).encode()
            info = tarfile.TarInfo(f"aclImdb/train/{label}/{number}_1.txt")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
    given = {"arch": "t11", "depth": 1, "dataset": "imdb", "context_length": 2, "vocabulary_size": 5, "test": True}
    trial = NEXT_TOKEN.read(NEXT_TOKEN.schema.fill({**given, "samples": 5}))
    found = NEXT_TOKEN.load(trial, Folder(str(tmp_path)))
    # 7, 6 and 5 tokens, twice: two, two and one stretches of three; a, b and c are 2, 3 and 4
    assert found.shape.num_samples == 5 and found.test.shape.num_samples == 5
    together = np.concatenate([np.c_[item.x_NI, item.labels_N[:, -1]] for item in (found, found.test)])
    assert sorted(map(tuple, together.tolist())) == [(1, 1, 1)] * 4 + [(2, 3, 4)] * 6
    np.testing.assert_array_equal(found.x_NI[:, 1:], found.labels_N[:, :-1])
    NEXT_TOKEN.check_data([{**given, "samples": 5}], Folder(str(tmp_path)))
    too_many = NEXT_TOKEN.read(NEXT_TOKEN.schema.fill({**given, "samples": 6}))
    with pytest.raises(DatasetError, match="has 10 sections of 3 tokens, but 12 are needed"):
        NEXT_TOKEN.load(too_many, Folder(str(tmp_path)))


@pytest.mark.slow
@pytest.mark.skipif("DEPTHRATE_DATA" not in os.environ, reason="DEPTHRATE_DATA is not set")
def test_a_language_model_of_reviews_learns(tmp_path):
    params = {"arch": "t11", "dataset": "imdb", "width": 32, "context_length": 16, "vocabulary_size": 200}
    training = {"optimizer": "adam", "lr": 0.005, "steps": 200, "batch_size": 64, "samples": 1000}
    spec = {"name": "s", "task": "next_token", "params": {**params, **training, "depth": 2}, "seeds": 1}
    sweep = sweep_of_spec(spec, tmp_path)
    task, pack = pack_of(sweep)
    (result,) = task.run(pack, Context(ids_of(pack), data=Folder(os.environ["DEPTHRATE_DATA"])))
    first, *_, last = result.tables["curves"]
    assert last["perplexity"] < 0.5 * first["perplexity"] and last["loss_gap"] is None
    ended = [row for row in result.tables["metrics"] if row["step"] == 200]
    assert ended[-1]["measured_classes"] > 100 and ended[-1]["cdnv"] < ended[0]["cdnv"]
