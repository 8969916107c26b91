"""The inputs X of the unconstrained features models: from the Gaussian model or a published data set.

Shapes: N samples sorted by class, D = dimension, K classes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from depthrate.tasks.data.published import load_dataset
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.papers.unconstrained.parameters import GAUSSIAN, UnconstrainedParameters

Array = npt.NDArray[np.float64]


def inputs(trial: UnconstrainedParameters, source: DataSource) -> Array:
    """Return X [N, D] of one trial.

    Gaussian: x ~ N(mu_k, I) with mu_k uniform on the unit sphere (P3, section V). A data set: the first classes, sampled
    with data_seed, projected on their first principal components and scaled to mean square 1 per coordinate.

    Raises:
        DatasetError: a file of the data set is missing or damaged.
    """
    classes, per_class, dimension = trial.num_classes, trial.samples_per_class, trial.dimension
    if trial.data == GAUSSIAN:
        generator = np.random.default_rng([trial.data_seed, classes, dimension])
        means_KD = generator.normal(size=(classes, dimension))
        means_KD /= np.linalg.norm(means_KD, axis=1, keepdims=True)
        return np.repeat(means_KD, per_class, axis=0) + generator.normal(size=(classes * per_class, dimension))
    dataset = load_dataset(
        trial.data, source, samples_per_class=per_class, data_seed=trial.data_seed, normalize="global"
    )
    x_NI = dataset.x_NI[dataset.labels_N < classes]
    x_NI = x_NI - x_NI.mean(0)
    _, _, directions = np.linalg.svd(x_NI, full_matrices=False)
    x_ND = x_NI @ directions[:dimension].T
    return np.asarray(x_ND / np.sqrt((x_ND**2).mean()))
