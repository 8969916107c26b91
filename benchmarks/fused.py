"""Fused packs beside one trial a process on all cores, which is what a user would do instead; ratios from one run.

    python -m benchmarks.fused                                   # CPU: plain, packs of each engine, vmap
    python -m benchmarks.fused --family transformer              # L-T11, 16 positions
    python -m benchmarks.fused --family module --sides plain,eager   # nn.Modules of a user's own: an MLP, an MLP-Mixer
    python -m benchmarks.fused --only 8:128 --rounds 9           # one setting: depth 8, 128 rows
    python -m benchmarks.fused --device cuda --sides plain,eager   # GPU: fused against one trial after another

The plain side trains the same networks with torch.nn modules and torch.optim, as many processes at once as there are
cores (on a GPU: one process, whose trials follow each other). All sides run the same number of training steps; process
start-up and building are left out (the first round), and the seconds of building printed. Rounds alternate between the
sides, so that a machine whose speed drifts does not favour one; medians are reported. Beside the ratio of trial-steps a second
stands that of trial-steps a processor second, which holds on a machine that does other work too. The last columns say which
share of one core's measured peak (and of its memory's bandwidth) that is: see benchmarks/floor.py.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.floor import Speeds, measured_speeds, step_work


@dataclass(frozen=True)
class Setting:
    """One shape of trials."""

    depth: int
    rows: int
    """Samples in a step (full batch)."""
    trials: int
    """Trials in a fused pack."""
    steps: int
    family: str = "residual"


CPU_SETTINGS = {
    "residual": [
        Setting(3, 32, 16, 400),
        Setting(2, 200, 3, 400),
        Setting(13, 200, 3, 100),
        Setting(8, 128, 16, 60),
        Setting(8, 512, 8, 40),
        Setting(8, 1437, 2, 40),
        Setting(34, 128, 16, 20),
        Setting(128, 128, 4, 6),
    ],
    "transformer": [Setting(2, 16, 8, 60, "transformer"), Setting(4, 64, 4, 20, "transformer")],
    "module": [
        Setting(3, 64, 8, 100, "mlp"),
        Setting(6, 256, 4, 40, "mlp"),
        Setting(2, 32, 8, 40, "mixer"),
        Setting(4, 64, 4, 20, "mixer"),
    ],
}
GPU_SETTINGS = [
    Setting(8, 128, 16, 200),
    Setting(8, 128, 64, 200),
    Setting(8, 512, 256, 100),
    Setting(13, 200, 64, 100),
    Setting(8, 1437, 64, 100),
    Setting(34, 128, 64, 50),
    Setting(34, 512, 64, 50),
]
SIDES = ("plain", "native", "eager", "vmap", "jax")
"""Plain PyTorch, our packs with each engine, torch.func.vmap ensembling, and a pack in JAX (jit of vmap, if installed)."""
WITHOUT = {
    "residual": (),
    "transformer": ("vmap", "jax"),
    "module": ("native", "jax"),
}
"""Sides that a family lacks."""
WIDTH, INPUTS, CLASSES, POSITIONS = 64, 64, 10, 16


def main() -> None:
    """Run the settings and print one row each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--family", choices=CPU_SETTINGS, default="residual")
    parser.add_argument("--sides", default=",".join(SIDES), help="of which the first is what others are compared with")
    parser.add_argument("--only", help="DEPTH:ROWS, one of the settings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, help="of each side at once; one a core")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _serve(arguments.worker, arguments.device)
        return
    settings = CPU_SETTINGS[arguments.family] if arguments.device == "cpu" else GPU_SETTINGS
    settings = [s for s in settings if arguments.only in (None, f"{s.depth}:{s.rows}")]
    without = WITHOUT[arguments.family]
    names = [name for name in arguments.sides.split(",") if name not in without]
    if importlib.util.find_spec("jax") is None and "jax" in names:
        print("jax is not installed, so its side is skipped")
        names.remove("jax")
    processes = arguments.processes or (len(os.sched_getaffinity(0)) if arguments.device == "cpu" else 1)
    print(
        f"{arguments.device}, {processes} processes a side, {arguments.rounds} rounds, {arguments.family}, width {WIDTH}, "
        "SGD momentum, full batch"
    )
    speeds = measured_speeds(arguments.device)
    print(speeds)
    print(
        "depth  rows  trials  side       trial-steps/s  ratio (min..max)    per processor second  ratio (min..max)   "
        "of peak FLOPs  of bandwidth"
    )
    sides = {name: [_Worker(name, arguments.device) for _ in range(processes)] for name in names}
    for setting in settings:
        _compare(setting, sides, arguments.rounds, speeds)


def _compare(setting: Setting, sides: dict[str, list[_Worker]], rounds: int, speeds: Speeds) -> None:
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for round_ in range(rounds + 1):
        for name, workers in sides.items():
            rate = _rates(workers, setting)
            if round_:  # the first round builds and warms up
                rates[name].append(rate)
    base = next(iter(rates.values()))
    for name, found in rates.items():
        cells = []
        for kind in (0, 1):
            ratios = [rate[kind] / plain[kind] for plain, rate in zip(base, found, strict=True)]
            speed = statistics.median(rate[kind] for rate in found)
            cells.append(f"{speed:13.0f}  {statistics.median(ratios):5.2f} ({min(ratios):.2f}..{max(ratios):.2f})")
        trials = 1 if name == "plain" else setting.trials
        is_dense = setting.family in ("residual", "mlp")
        work = step_work(_network(setting), setting.rows, INPUTS, WIDTH, trials, is_dense=is_dense)
        of_peak, of_bandwidth = work.shares(statistics.median(per_cpu_s for _, per_cpu_s in found), speeds)
        shares = f"{of_peak:13.1%} {of_bandwidth:13.1%}"
        start = f"{setting.depth:5d} {setting.rows:5d} {setting.trials:7d}  {name:9s}"
        print(f"{start} {'     '.join(cells)} {shares}", flush=True)


def _rates(workers: list[_Worker], setting: Setting) -> tuple[float, float]:
    """Return trial-steps a second, and a processor second, of all processes together."""
    started = time.perf_counter()
    for worker in workers:
        worker.start(setting)
    done = [worker.finish() for worker in workers]
    trial_steps = sum(steps for steps, _ in done)
    return trial_steps / (time.perf_counter() - started), trial_steps / sum(cpu_s for _, cpu_s in done)


class _Worker:
    """A warm process that trains one setting at a time."""

    def __init__(self, side: str, device: str):
        from depthrate.orchestrator.executors.local import WORKER_ENVIRONMENT

        command = [sys.executable, "-m", "benchmarks.fused", "--device", device, "--worker", side]
        environment = {**os.environ, **WORKER_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, setting: Setting) -> None:
        assert self._process.stdin is not None
        print(json.dumps(setting.__dict__), file=self._process.stdin, flush=True)

    def finish(self) -> tuple[int, float]:
        assert self._process.stdout is not None
        steps, cpu_s = self._process.stdout.readline().split()
        return int(steps), float(cpu_s)


def _serve(side: str, device: str) -> None:
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    ready: dict[Setting, tuple[Callable[[int], Any], int]] = {}
    for line in sys.stdin:
        setting = Setting(**json.loads(line))
        if setting not in ready:
            step, trials = _SIDES[side](setting, device)
            ready[setting] = (step if side == "native" else _one_by_one(step)), trials
            ready[setting][0](20)  # kernels adapt the number of steps of a call, and a GPU records its step
        take, trials = ready[setting]
        started = time.process_time()
        take(setting.steps)
        if device == "cuda":
            torch.cuda.synchronize()
        print(setting.steps * trials, time.process_time() - started, flush=True)


def _one_by_one(step: Callable[[], Any]) -> Callable[[int], None]:
    def take(num_steps: int) -> None:
        for _ in range(num_steps):
            step()

    return take


def _data(setting: Setting, device: str):  # type: ignore[no-untyped-def]
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(setting.rows, INPUTS, generator=generator)
    labels = torch.arange(setting.rows) % CLASSES
    return x.to(device), labels.to(device)


def _network(setting: Setting):  # type: ignore[no-untyped-def]
    from depthrate.tasks.data.dataset import DataShape
    from depthrate.tasks.networks.module import ModuleNetwork
    from depthrate.tasks.networks.residual import ResidualNetwork
    from depthrate.tasks.networks.transformer import Transformer

    if setting.family == "residual":
        return ResidualNetwork(
            linear_layers=1, pre_norm=False, depth=setting.depth, width=WIDTH,
            input_dimensions=INPUTS, num_classes=CLASSES, last_bias=True,
        )  # fmt: skip
    if setting.family in ("mlp", "mixer"):
        return ModuleNetwork(
            make=lambda: _modules(setting, "cpu", 1)[0], name=setting.family, arguments={},
            data=DataShape(num_samples=setting.rows, sample_shape=(INPUTS,), num_classes=CLASSES),
        )  # fmt: skip
    return Transformer(
        attention_layers=1, mlp_layers=1, pre_norm=False, depth=setting.depth, width=WIDTH, positions=POSITIONS,
        patch_dimensions=INPUTS // POSITIONS, vocabulary_size=None, num_classes=CLASSES, last_bias=True,
    )  # fmt: skip


def make_trainer(setting: Setting, device: str, trials: int):  # type: ignore[no-untyped-def]
    import torch

    from depthrate.tasks.training.trainer import FusedTrainer
    from depthrate.tasks.training.training_plan import Hyperparameters, TrainingPlan

    plan = TrainingPlan(
        loss="ce", optimizer="sgd", schedule="constant", num_steps=10**6,
        batch_size=None, init="uniform", clip_norm=None, dtype=torch.float32,
    )  # fmt: skip
    given = [Hyperparameters(seed, 0.05, 0.9, {"hidden": 0.005, "last": 0.005}) for seed in range(trials)]
    return FusedTrainer(_network(setting), plan, given, *_data(setting, device))


def _eager(setting: Setting, device: str) -> tuple[Callable[[], Any], int]:
    return make_trainer(setting, device, setting.trials).step, setting.trials


def _native(setting: Setting, device: str) -> tuple[Callable[[int], Any], int]:
    from depthrate.tasks.training.engines.native import native_library
    from depthrate.tasks.training.pack_state import Divergence

    trainer = make_trainer(setting, device, setting.trials)
    library, seconds = native_library(trainer.network, trainer.plan, lambda: False)
    print(f"depth {setting.depth}, {setting.rows} rows: built in {seconds:.1f} s", file=sys.stderr)
    trainer.use_native(library)
    divergence = Divergence(trainer.num_trials, trainer.device)

    def take(num_steps: int) -> None:  # as a pack does between two measurements
        until = trainer.step_count + num_steps
        while trainer.step_count < until:
            trainer.advance(until, divergence)

    return take, trainer.num_trials


def _modules(setting: Setting, device: str, count: int):  # type: ignore[no-untyped-def]
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return self.norm(h + torch.relu(self.linear(h)))

    class AttentionBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores, self.values = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            u = self.norm(h)
            q, k, v = (item.unsqueeze(1) for item in (self.scores(u), u, self.values(u)))  # one head
            u = u + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
            v = self.norm(u)
            return v + torch.relu(self.linear(v))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(INPUTS // POSITIONS, WIDTH, bias=False)
            self.places = nn.Parameter(torch.randn(POSITIONS, WIDTH))
            self.blocks = nn.Sequential(*[AttentionBlock() for _ in range(setting.depth)])
            self.norm, self.last = nn.LayerNorm(WIDTH, elementwise_affine=False), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.embedding(x.view(len(x), POSITIONS, -1)) + self.places
            return self.last(self.norm(self.blocks(h)[:, -1]))

    class MixerBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
            self.tokens = nn.Sequential(nn.Linear(POSITIONS, 32), nn.GELU(), nn.Linear(32, POSITIONS))
            self.channels = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            h = h + self.tokens(self.norms[0](h).transpose(1, 2)).transpose(1, 2)
            return h + self.channels(self.norms[1](h))

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Linear(INPUTS // POSITIONS, WIDTH)
            self.blocks = nn.ModuleList([MixerBlock() for _ in range(setting.depth)])
            self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.embedding(x.view(len(x), POSITIONS, -1))
            for block in self.blocks:
                h = block(h)
            return self.last(self.norm(h).mean(1))

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(INPUTS, WIDTH)
            self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(setting.depth - 1)])
            self.last = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.first(x))
            for block in self.blocks:
                h = torch.relu(block(h))
            return self.last(h)

    def residual() -> nn.Module:
        first = [nn.Linear(INPUTS, WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)]
        return nn.Sequential(*first, *[Block() for _ in range(setting.depth - 1)], nn.Linear(WIDTH, CLASSES))

    makers = {"residual": residual, "transformer": Transformer, "mlp": MLP, "mixer": Mixer}
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(makers[setting.family]().to(device))
    return made


def _plain(setting: Setting, device: str) -> tuple[Callable[[], Any], int]:
    import torch

    x, labels = _data(setting, device)
    (model,) = _modules(setting, device, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.005)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, 1


def _vmap(setting: Setting, device: str) -> tuple[Callable[[], Any], int]:
    import torch
    from torch.func import functional_call, grad, stack_module_state, vmap

    x, labels = _data(setting, device)
    models = _modules(setting, device, setting.trials)
    parameters, _ = stack_module_state(models)
    momenta = {name: torch.zeros_like(p) for name, p in parameters.items()}

    def loss(each: dict[str, Any]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(functional_call(models[0], each, (x,)), labels)

    gradients = vmap(grad(loss))

    def step() -> None:
        with torch.no_grad():
            found = gradients({name: p.detach() for name, p in parameters.items()})
            for name, p in parameters.items():
                momenta[name].mul_(0.9).add_(found[name].add_(p, alpha=0.005))
                p.sub_(momenta[name], alpha=0.05)

    return step, setting.trials


def _jax(setting: Setting, device: str) -> tuple[Callable[[], Any], int]:
    jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")  # need not be installed

    x, labels = (jnp.asarray(tensor.cpu().numpy()) for tensor in _data(setting, device))

    def normalise(h: Any) -> Any:
        return (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-5)

    def loss(weights: Any) -> Any:
        (first, bias), *blocks, (last, last_bias) = weights
        h = normalise(x @ first + bias)
        for weight, block_bias in blocks:
            h = normalise(h + jax.nn.relu(h @ weight + block_bias))
        return -jnp.take_along_axis(jax.nn.log_softmax(h @ last + last_bias), labels[:, None], 1).mean()

    def update(weights: Any, momenta: Any) -> Any:
        slopes = jax.tree.map(lambda g, w: g + 0.005 * w, jax.grad(loss)(weights), weights)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, slopes)
        return jax.tree.map(lambda w, m: w - 0.05 * m, weights, momenta), momenta

    sizes = [INPUTS, *[WIDTH] * setting.depth, CLASSES]
    key, shapes = jax.random.key(0), list(itertools.pairwise(sizes))
    keys = jax.random.split(key, len(shapes))
    weights = [
        (jax.random.normal(k, (setting.trials, i, o)) / i**0.5, jnp.zeros((setting.trials, o)))
        for k, (i, o) in zip(keys, shapes, strict=True)
    ]
    state = [weights, jax.tree.map(jnp.zeros_like, weights)]
    take = jax.jit(jax.vmap(update))

    def step() -> None:
        state[:] = jax.block_until_ready(take(*state))

    return step, setting.trials


_SIDES: dict[str, Callable[[Setting, str], tuple[Callable[..., Any], int]]] = {
    "plain": _plain,
    "native": _native,
    "eager": _eager,
    "vmap": _vmap,
    "jax": _jax,
}


if __name__ == "__main__":
    main()
