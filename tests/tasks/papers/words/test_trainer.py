"""The fused step against plain PyTorch, and fused against alone."""

import pytest
import torch
import torch.nn.functional as F

from depthrate.tasks.papers.words.task import WORDS

SMALL = {"vocabulary_size": 30, "sentence_length": 4, "sequences": 12, "width": 7, "batch_size": 20, "steps": 25}


def filled(**params):
    return WORDS.schema.fill({**SMALL, **params})


def trainer_of(*trials):
    return WORDS.training([WORDS.read(params) for params in trials], None).begin()


def plain(params, num_steps):
    """The same trial with nn.Embedding, nn.Linear, autograd and torch.optim.SGD, on the same batches."""
    trainer = trainer_of(params)
    words = torch.nn.Parameter(trainer.embedding(0).clone())
    linear = torch.nn.Parameter(trainer.linear(0).flatten(1).clone())
    decay = params["weight_decay"]
    own = 0.0 if params["layer_norm"] else decay
    groups = [{"params": [words], "weight_decay": own}, {"params": [linear], "weight_decay": decay}]
    optimizer = torch.optim.SGD(groups, lr=params["lr"])
    for _ in range(num_steps):
        rows, labels = trainer._next_batch()
        features = F.embedding(rows.long(), words)
        if params["layer_norm"]:
            features = F.layer_norm(features, features.shape[-1:], eps=params["layer_norm_eps"])
        logits = features.view(-1, linear.shape[1]) @ linear.T
        optimizer.zero_grad()
        F.cross_entropy(logits, labels.flatten()).backward()
        optimizer.step()
    return words.detach(), linear.detach()


def numbers(trainer, position):
    return trainer.evaluate([position]).values()


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_step_is_that_of_plain_pytorch(layer_norm):
    """With weights, rates and decays at which every term counts: a decay left out would show."""
    shape = {"init_scale": 1.0, "weight_decay": 0.05, "lr": 0.5, "samples_per_sequence": 4, "zipf": 1.0}
    params = filled(layer_norm=layer_norm, dtype="float64", **shape)
    words, linear = plain(params, 25)
    trainer = trainer_of(params)
    for _ in range(25):
        assert trainer.step().isfinite().all()
    torch.testing.assert_close(trainer.embedding(0), words, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(trainer.linear(0).flatten(1), linear, rtol=1e-10, atol=1e-13)


def test_factors_fold_before_underflow():
    params = filled(dtype="float64", weight_decay=2.0, lr=0.25, init_scale=1.0)
    words, linear = plain(params, 25)
    trainer = trainer_of(params)
    for _ in range(25):
        trainer.step()
    assert min(trainer._word_scales + trainer._linear_scales) >= 2.0**-20 > 0.5**25
    torch.testing.assert_close(trainer.embedding(0), words, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(trainer.linear(0).flatten(1), linear, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_fused_is_bitwise_what_each_trial_is_alone(layer_norm):
    """Over seeds, frequencies, sentences a class, learning rates and decays, and after one has left."""
    second = {"zipf": 1.0, "samples_per_sequence": 3, "lr": 0.3}
    third = {"zipf": 0.5, "weight_decay": 0.02, "samples_per_sequence": 9, "init_scale": 0.1}
    trials = [filled(seed=n, layer_norm=layer_norm, **more) for n, more in enumerate(({}, second, third), 1)]
    together = trainer_of(*trials)
    for _ in range(12):
        together.step()
    together.select([0, 2])
    for _ in range(13):
        together.step()
    for position, params in enumerate([trials[0], trials[2]]):
        alone = trainer_of(params)
        for _ in range(25):
            alone.step()
        assert torch.equal(alone.embedding(0), together.embedding(position))
        assert torch.equal(alone.linear(0), together.linear(position))
        for one, other in zip(numbers(alone, 0), numbers(together, position), strict=True):
            assert torch.equal(one, other)


def test_evaluation_equals_the_network():
    params = filled(layer_norm=True, dtype="float64", init_scale=1.0)
    trainer = trainer_of(params)
    for _ in range(5):
        trainer.step()
    sentences = trainer.sentences[0]
    labels = torch.arange(params["sequences"]).repeat_interleave(params["samples_per_sequence"])
    for words_NL, loss, accuracy in (
        (sentences.train_NL, "loss", "accuracy"),
        (sentences.test_NL, "test_loss", "test_accuracy"),
    ):
        logits = trainer.word_features(0)[words_NL.long()].flatten(1) @ trainer.linear(0).flatten(1).T
        found = trainer.evaluate([0])
        assert found[loss] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-12)
        assert found[accuracy] == (logits.argmax(1) == labels).double().mean().item()
    decay = params["weight_decay"] / 2 * trainer.linear(0).square().sum().item()
    assert found["objective"] == pytest.approx(found["loss"] + decay, rel=1e-12)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_epoch_mean_precedes_steps(layer_norm):
    """48 sentences in batches of 20: an epoch has two steps, and what is over begins a new one."""
    params = filled(layer_norm=layer_norm, dtype="float64", init_scale=1.0, lr=0.5, samples_per_sequence=4)
    trainer, shadow = trainer_of(params), trainer_of(params)
    assert all(trainer.evaluate([0])[name].isnan() for name in ("epoch_loss", "epoch_accuracy"))
    before: list[tuple[float, float]] = []
    for step in range(5):
        rows, labels = shadow._next_batch()  # the same batches; shadow's own numbers are not used
        features = trainer.word_features(0)[rows.long()].view(20, -1)
        logits, labels = features @ trainer.linear(0).flatten(1).T, labels.flatten()
        now = F.cross_entropy(logits, labels).item(), (logits.argmax(1) == labels).double().mean().item()
        before = [now] if step % 2 == 0 else [*before, now]
        trainer.step()
        found = trainer.evaluate([0])
        means = [sum(item) / len(before) for item in zip(*before, strict=True)]
        torch.testing.assert_close(
            torch.stack([found["epoch_loss"][0], found["epoch_accuracy"][0]]), torch.tensor(means).double()
        )
