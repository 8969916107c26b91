"""Fused trials of the task `words` beside plain PyTorch, one process a trial on all cores; ratios from one run.

    python benchmarks/words.py

The plain side is what the paper's notebooks do: nn.Embedding, nn.Linear, cross-entropy and torch.optim.SGD with a weight decay,
as many processes at once as there are cores, each with one thread. The other sides train packs of the size that the task
advises (at most 8 trials), one in each process: eager steps by hand, and native ones. The figure is trial-steps a second of
processor time, times the cores: every process has one thread, and other work on the machine then counts little. The shares are
those of the cores' own sgemm of 1,024 in the same rounds, of the multiply-adds of the dense products: a side that computes
less of them, once a word, may come to more than 1. Process start-up, building of kernels, their first calls and drawing of
sentences are left out. Rounds alternate between the sides; medians are reported.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

TRIALS = 8
BATCH = 100
NATIVE_STEPS = 3
"""How many times as many steps the native side takes: it is fast."""
SETTINGS = [
    # sequences, vocabulary, words a sentence, width, LayerNorm, steps
    (50, 300, 10, 30, False, 100),
    (50, 300, 10, 30, True, 100),
    (1000, 1200, 15, 100, False, 10),
    (1000, 1200, 15, 100, True, 10),
    (150, 150, 10, 20, False, 100),
    (100, 1200, 15, 100, False, 20),
]
"""Those of 1,000 sequences are the paper's."""
Setting = tuple[int, int, int, int, bool, int]


def main() -> None:
    """Run the settings and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cores = len(os.sched_getaffinity(0))
    print(
        f"{cores} processes a side, {rounds} rounds, packs of at most {TRIALS}, batches of 100, 5 sentences a sequence, Zipf"
    )
    print("sequences  words  length  width  LayerNorm  a pack  trial-steps/s, share of peak, ratio to plain (min..max)")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(cores, mp_context=context, initializer=_one_thread) as pool:
        for setting in SETTINGS:
            _compare(pool, setting, rounds, cores)


def _compare(pool: ProcessPoolExecutor, setting: Setting, rounds: int, cores: int) -> None:
    from depthrate.tasks.papers.words.task import WORDS

    pack = min(WORDS.max_pack_size(_params(setting, 0), "cpu"), TRIALS)
    sides = {
        # one after another: two trials a process give the same rate as eight, sooner
        "plain": (_train_plain, [[seed] for seed in range(2 * cores)], 1),
        "eager": (_train_eager, [list(range(pack))] * cores, 1),
        "native": (_train_native, [list(range(pack))] * cores, NATIVE_STEPS),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    peaks = []
    for round_ in range(rounds + 1):
        peak = statistics.mean(pool.map(_peak, range(cores))) * cores
        for name, (train, parts, times) in sides.items():
            busy_s = sum(pool.map(train, [setting] * len(parts), parts))
            if round_:  # the first round warms up
                rates[name].append(sum(map(len, parts)) * setting[-1] * times * cores / busy_s)
        peaks.append(peak)
    sequences, words, length, width, layer_norm, _ = setting
    print(f"{sequences:9d} {words:6d} {length:7d} {width:6d} {layer_norm!s:>10} {pack:7d}", end="")
    for name, found in rates.items():
        ratios = [rate / plain for plain, rate in zip(rates["plain"], found, strict=True)]
        share = statistics.median(found) * 3 * BATCH * length * width * sequences / statistics.median(peaks)
        print(f"  {name} {statistics.median(found):.1f}, {share:.2f}", end="")
        if name != "plain":
            print(f", {statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})", end="")
    print(flush=True)


def _peak(_: int) -> float:
    """Return the multiply-adds a second of a product of torch's."""
    import torch

    a, b = torch.randn(2, 1024, 1024)
    times_s = []
    for _ in range(5):
        started = time.process_time()
        torch.mm(a, b)
        times_s.append(time.process_time() - started)
    return 1024**3 / min(times_s)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _params(setting: Setting, seed: int) -> dict[str, object]:
    from depthrate.tasks.papers.words.task import WORDS

    sequences, words, length, width, layer_norm, steps = setting
    return WORDS.schema.fill(
        {
            "sequences": sequences,
            "vocabulary_size": words,
            "sentence_length": length,
            "width": width,
            "layer_norm": layer_norm,
            "steps": steps,
            "zipf": 1.0,
            "seed": seed,
        }
    )


def _train_eager(setting: Setting, seeds: list[int]) -> float:
    """Return the seconds that a pack of these seeds takes."""
    from depthrate.tasks.papers.words.task import WORDS
    from depthrate.tasks.papers.words.training import training

    trainer = training([WORDS.read(_params(setting, seed)) for seed in seeds]).begin()
    started = time.process_time()
    for _ in range(setting[-1]):
        trainer.step()
    return time.process_time() - started


def _train_native(setting: Setting, seeds: list[int]) -> float:
    """Return the seconds that a pack of these seeds takes once calls are as long as they become."""
    import torch

    from depthrate.tasks.papers.words.task import WORDS
    from depthrate.tasks.papers.words.training import training
    from depthrate.tasks.training.pack_state import Divergence

    steps = setting[-1] * NATIVE_STEPS
    made = training([WORDS.read(_params(setting, seed)) for seed in seeds])
    trainer, divergence = made.begin(), Divergence(len(seeds), torch.device("cpu"))
    trainer.use_native(made.native_library(lambda: False)[0])
    while trainer.step_count < steps:
        trainer.advance(steps, divergence)
    started = time.process_time()
    while trainer.step_count < 2 * steps:
        trainer.advance(2 * steps, divergence)
    return time.process_time() - started


def _train_plain(setting: Setting, seeds: list[int]) -> float:
    """Return the seconds that one trial takes as the paper's notebooks train it."""
    import torch
    from torch import nn

    from depthrate.tasks.papers.words.sentences import draw_sentences
    from depthrate.tasks.papers.words.task import WORDS

    sequences, words, length, width, layer_norm, steps = setting
    (seed,) = seeds
    params = _params(setting, seed)
    sentences = draw_sentences(WORDS.read(params)).train_NL.long()
    labels = torch.arange(sequences).repeat_interleave(len(sentences) // sequences)
    torch.manual_seed(seed)
    norm = [nn.LayerNorm(width, elementwise_affine=False)] if layer_norm else []
    network = nn.Sequential(
        nn.Embedding(words, width), *norm, nn.Flatten(), nn.Linear(length * width, sequences, bias=False)
    )
    for parameter in network.parameters():
        parameter.data /= 1000
    embedding, *linear = network.parameters()
    groups = [
        {"params": [embedding], "weight_decay": 0.0 if layer_norm else 0.001},
        {"params": linear, "weight_decay": 0.001},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    batch, order, position = BATCH, torch.randperm(len(sentences)), 0
    started = time.process_time()
    for _ in range(steps):
        if position + batch > len(sentences):
            order, position = torch.randperm(len(sentences)), 0
        chosen = order[position : position + batch]
        position += batch
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(sentences[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return time.process_time() - started


if __name__ == "__main__":
    main()
