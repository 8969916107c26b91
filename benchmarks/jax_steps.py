"""Training steps of two networks of own_networks.py in JAX, for `benchmarks.generated --jax`. Needs only JAX, which need not be
installed beside depthrate:

    /path/to/venv/bin/python benchmarks/jax_steps.py Net 8 64 128

It prints the trial-steps per CPU second of `jit` of `vmap` of a `lax.scan` of gradient steps, one thread, the best of some
numbers of trials. Arguments: network, depth, width, batch (0: full).
"""

import importlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

SAMPLES, CLASSES = 1437, 10
TRIALS = (1, 4, 16)
SIDE_S = 3.0
MAX_STEPS_S = 0.5
"""Seconds of a call, by which the number of its steps is chosen."""
Parameters = dict[str, Any]

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")


def normalise(x: Any, eps: float = 1e-5) -> Any:
    """Normalise the last axis, as LayerNorm does without scale and shift."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + eps)


def net(parameters: Parameters, x: Any) -> Any:
    """Compute the outputs of `Net`."""
    *blocks, (last, last_bias) = parameters["linear"]
    h = normalise(x @ blocks[0][0] + blocks[0][1])
    for weight, bias in blocks[1:]:
        h = normalise(h + jax.nn.relu(h @ weight + bias))
    return h @ last + last_bias


def transformer(parameters: Parameters, x: Any) -> Any:
    """Compute the outputs of `Transformer`."""
    (first, first_bias), *linear, (last, last_bias) = parameters["linear"]
    h = x.reshape(-1, 8, 8) @ first + first_bias + parameters["positions"]
    n, positions, width = h.shape
    for number, ((scale_one, shift_one), (scale_two, shift_two)) in enumerate(parameters["norms"]):
        mixing, out, up, down = linear[4 * number : 4 * number + 4]
        parts = (normalise(h) * scale_one + shift_one) @ mixing[0] + mixing[1]
        queries, keys, values = (
            part.swapaxes(1, 2) for part in jnp.moveaxis(parts.reshape(n, positions, 3, 2, -1), 2, 0)
        )
        scores = jax.nn.softmax(queries @ keys.swapaxes(2, 3) / (width // 2) ** 0.5)
        h = h + (scores @ values).swapaxes(1, 2).reshape(n, positions, width) @ out[0] + out[1]
        inner = (normalise(h) * scale_two + shift_two) @ up[0] + up[1]
        h = h + jax.nn.gelu(inner, approximate=False) @ down[0] + down[1]
    return h.mean(1) @ last + last_bias


def start(name: str, depth: int, width: int, key: Any) -> Parameters:
    """Draw the parameters of a trial."""
    if name == "Net":
        sizes = [(64, width), *[(width, width)] * (depth - 1), (width, CLASSES)]
    else:
        block = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        sizes = [(8, width), *block * depth, (width, CLASSES)]
    last, *keys = jax.random.split(key, len(sizes) + 1)
    drawn = zip(keys, sizes, strict=True)
    linear = [(jax.random.normal(key, size) / size[0] ** 0.5, jnp.zeros(size[1])) for key, size in drawn]
    if name == "Net":
        return {"linear": linear}
    norms = [[(jnp.ones(width), jnp.zeros(width)) for _ in range(2)] for _ in range(depth)]
    return {"linear": linear, "norms": norms, "positions": 0.02 * jax.random.normal(last, (8, width))}


def run(
    forward: Callable[[Parameters, Any], Any], x: Any, labels: Any, parameters: Any, momenta: Any, order: Any
) -> Any:
    """Take the steps of one trial whose batches are the rows of `order` [steps, batch], or full ones if a batch is empty."""

    def loss(parameters: Parameters, inputs: Any, targets: Any) -> Any:
        logits = jax.nn.log_softmax(forward(parameters, inputs))
        return -jnp.take_along_axis(logits, targets[:, None], 1).mean()

    def step(state: Any, rows: Any) -> Any:
        parameters, momenta = state
        inputs, targets = (x[rows], labels[rows]) if rows.shape[0] else (x, labels)
        value, slopes = jax.value_and_grad(loss)(parameters, inputs, targets)
        slopes = jax.tree.map(lambda slope, weight: slope + 1e-4 * weight, slopes, parameters)
        momenta = jax.tree.map(lambda momentum, slope: 0.9 * momentum + slope, momenta, slopes)
        return (jax.tree.map(lambda weight, m: weight - 0.01 * m, parameters, momenta), momenta), value

    return jax.lax.scan(step, (parameters, momenta), order)


def rate(name: str, depth: int, width: int, batch: int, trials: int) -> float:
    """Return the largest rate of calls of some trials."""
    forward = net if name == "Net" else transformer
    key = jax.random.key(0)
    x, labels = jax.random.normal(key, (SAMPLES, 64)), jax.random.randint(key, (SAMPLES,), 0, CLASSES)
    parameters = jax.vmap(partial(start, name, depth, width))(jax.random.split(key, trials))
    state = parameters, jax.tree.map(jnp.zeros_like, parameters)
    take = jax.jit(jax.vmap(partial(run, forward, x, labels)), donate_argnums=(0, 1))

    def order(steps: int) -> Any:
        rows = jax.random.randint(key, (trials, steps, batch), 0, SAMPLES)
        return jax.block_until_ready(rows)

    def timed(rows: Any) -> float:
        nonlocal state
        started = time.process_time()
        state, _ = jax.block_until_ready(take(*state, rows))
        return time.process_time() - started

    few = order(4)
    timed(few)
    steps = max(4, int(4 * MAX_STEPS_S / timed(few)))
    rows = order(steps)
    timed(rows)
    best, end = 0.0, time.process_time() + SIDE_S
    while time.process_time() < end:
        best = max(best, trials * steps / timed(rows))
    return best


if __name__ == "__main__":
    network, *numbers = sys.argv[1:]
    depth, width, batch = map(int, numbers)
    print(max(rate(network, depth, width, batch, trials) for trials in TRIALS))
