"""The task of the stored sweeps `law` and `tuned`: numbers, and two columns of its own."""

import numpy as np

import depthrate


@depthrate.task(version=1)
def law(*, depth: int, exponent: float = 0.5, seed: int = 0):
    rng = np.random.default_rng([seed, depth])
    value = depth**-exponent * np.exp(0.05 * rng.normal())
    curves = [{"step": step, "loss": 1.0 / (1 + step)} for step in (0, 1, 2)]
    rows = [{"layer": layer, "nc1": value * (1 + depth - layer), "bend": 0.5 * layer, "note": f"layer {layer}"}
            for layer in range(depth + 1)]  # fmt: skip
    return {"metrics": rows, "curves": curves}
