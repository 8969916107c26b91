"""The task `own`: what a pack of it trains on, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence

from depthrate.tasks.collapse.pack import layer_measurements
from depthrate.tasks.collapse.schema import weight_decays
from depthrate.tasks.data.dataset import Dataset
from depthrate.tasks.measures.named_columns import asked
from depthrate.tasks.networks.network import Network
from depthrate.tasks.own.schema import OwnParameters
from depthrate.tasks.training.training import NetworkTraining, training_of


def training(trials: Sequence[OwnParameters], dataset: Dataset, network: Network) -> NetworkTraining:
    """Return what a pack of trials does with a data set."""
    rank_tol, names, test = trials[0].rank_tol, asked(trials[0].measure), dataset.test
    of_test = None if test is None else layer_measurements(test.class_counts_K, rank_tol, split="test", names=names)
    return training_of(
        trials,
        network,
        dataset,
        [weight_decays(trial) for trial in trials],
        init=getattr(trials[0], "init", ""),  # a user's network draws its start itself
        measure=layer_measurements(dataset.class_counts_K, rank_tol, names=names),
        measure_test=of_test,
    )
