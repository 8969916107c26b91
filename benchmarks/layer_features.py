"""Memory of measuring and keeping all layers of all samples, for networks of 5, 20 and 80 layers: it should not grow.

    python benchmarks/layer_features.py [--samples 20000] [--width 64]

Each depth runs in a process of its own, an untrained L-RN1 whose features all go to a store in a temporary folder; printed
is by how much the process's peak grew over what it had before. LOG.md has what was measured.
"""

import argparse
import resource
import subprocess
import sys
import tempfile

DEPTHS = (5, 20, 80)


def grown_mb(depth: int, num_samples: int, width: int) -> float:
    """Return by how many MB measuring and keeping the layers of a network raises this process's peak."""
    import numpy as np

    from depthrate.storage.files.store import Store
    from depthrate.storage.tables.feature_file import FeatureFile
    from depthrate.storage.tables.from_task import layer_parts, task_table
    from depthrate.tasks.data.dataset import Dataset
    from depthrate.tasks.supervised.task import COLLAPSE
    from depthrate.tasks.training.layers import stored_features

    rng = np.random.default_rng(0)
    labels_N = np.sort(np.arange(num_samples) % 10)
    data = Dataset(rng.normal(size=(num_samples, width)).astype(np.float32), labels_N, np.bincount(labels_N))
    params = COLLAPSE.schema.fill({"arch": "rn1", "depth": depth, "width": width, "steps": 1, "geodesic": True})
    trial = COLLAPSE.read(params)
    pack = COLLAPSE.training_on([trial], data)
    trainer = pack.begin()
    with tempfile.TemporaryDirectory() as folder:
        before = _peak_mb()
        pack.measure(trainer, [0], 0)
        features = FeatureFile()
        for part in layer_parts(stored_features(trainer, 0, data.class_counts_K, 0, "all", "float32")):
            features.add(task_table("features", part, None, trial_id="x", attempt_id="a"))  # type: ignore[arg-type]
        written = features.write(Store(folder), "features/x.parquet")
        features.close()
        assert written.rows == depth * num_samples
        return _peak_mb() - before


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure each depth in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, help="measure this one here and print its MB alone")
    given = parser.parse_args()
    if given.depth:
        print(f"{grown_mb(given.depth, given.samples, given.width):.1f}")
        return
    print("layers  peak grows by (MB)  all layers (MB)")
    for depth in DEPTHS:
        command = [sys.executable, __file__, *("--samples", str(given.samples), "--width", str(given.width))]
        done = subprocess.run([*command, "--depth", str(depth)], capture_output=True, text=True, check=True)
        print(f"{depth:6}  {float(done.stdout):18.1f}  {4e-6 * depth * given.samples * given.width:15.1f}")


if __name__ == "__main__":
    main()
