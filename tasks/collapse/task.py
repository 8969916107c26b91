"""The task `collapse`: its checks, and all of it put together. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from depthrate.tasks.collapse.measurements import MEASUREMENTS, PANELS
from depthrate.tasks.collapse.schema import CollapseParameters, data_shape
from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.measures import named_columns
from depthrate.tasks.networks.batch_normed import stages_of
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.task import Params, TaskContext, TrialResult
from depthrate.tasks.training.fused_task import NetworkTask
from depthrate.tasks.training.parameters import check_training
from depthrate.tasks.training.polish_parameters import check_polish

if TYPE_CHECKING:
    from depthrate.tasks.training.training import NetworkTraining

SMALLEST_SIDE = 8
"""Of images for a backbone: two pixels are left of it in the last stage."""


class Collapse(NetworkTask[CollapseParameters]):
    """Deep networks on a published data set."""

    name = "collapse"
    version = (
        3  # 2 weighted class means by their samples, and had nc2 and nc3 of the raw input where its size was the width
    )
    doc = "Train deep residual networks or transformers and measure neural collapse layer by layer."
    parameters = CollapseParameters
    measurements = MEASUREMENTS
    panels = PANELS
    has_engines = True

    def published_sets(self, trial: CollapseParameters) -> Sequence[str]:
        """Return the data set that it trains on."""
        return (trial.dataset,)

    def data_shape(self, trial: CollapseParameters) -> DataShape:
        """Return the shape of the training set, known before it is read."""
        return data_shape(trial)

    def network(self, trial: CollapseParameters, data: DataShape) -> Network:
        """Return the network of a trial, for data of that shape."""
        return ARCHITECTURES[trial.arch].make(trial, data)

    def check(self, trial: CollapseParameters) -> None:
        """Refuse combinations that cannot run.

        Raises:
            ParameterError: naming the parameters that exclude each other.
        """
        check_training(trial, data_shape(trial).num_samples)
        named_columns.asked(trial.measure)
        check_draw(trial, PUBLISHED[trial.dataset].smallest_class)
        _check_inputs(trial)
        _check_free(trial)
        _check_backbone(trial)
        _check_stages(trial)
        check_polish(trial, is_deepenable=not trial.continuation or self._is_deepenable(trial))

    def _is_deepenable(self, trial: CollapseParameters) -> bool:
        return self.network(trial, data_shape(trial)).neutral_block() is not None

    def training(self, trials: Sequence[CollapseParameters], source: DataSource) -> NetworkTraining:
        """Return what a pack of trials does.

        Raises:
            DatasetError: a file of the data set is missing or damaged.
        """
        from depthrate.tasks.collapse.pack import loaded, training

        dataset = loaded(trials[0], source)
        return training(trials, dataset, self.network(trials[0], dataset.shape))

    def run(self, trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
        """Train and measure a pack of trials of one shape, or of one chain of depths.

        Raises:
            Interrupted: it was asked to stop and has saved a checkpoint.
        """
        if not self.read(trials[0]).continuation:
            yield from super().run(trials, context)
            return
        from depthrate.tasks.collapse.pack import loaded, training
        from depthrate.tasks.training.continuation import run_chain

        read = [self.read(params) for params in trials]
        dataset = loaded(read[0], context.data)

        def at_one_depth(trials: Sequence[CollapseParameters]) -> NetworkTraining:
            return training(trials, dataset, self.network(trials[0], dataset.shape))

        yield from run_chain(read, at_one_depth, context)


def check_draw(trial: CollapseParameters, smallest_class: int) -> None:
    """Refuse more samples of a class than the smallest one has.

    Raises:
        ParameterError: naming both numbers.
    """
    if trial.samples_per_class is not None and trial.samples_per_class > smallest_class:
        raise ParameterError(
            f"samples_per_class is {trial.samples_per_class}, but the smallest class of {trial.dataset!r} has "
            f"{smallest_class} samples; give at most that, or null for all"
        )


def _check_inputs(trial: CollapseParameters) -> None:
    """Refuse parameters of patches and texts where there are none, so that no two trials differ in name only."""
    info, architecture = PUBLISHED[trial.dataset], ARCHITECTURES[trial.arch]
    arch, dataset = trial.arch, trial.dataset
    if info.image_shape is None and not architecture.reads_tokens:
        *others, last = [name for name, other in ARCHITECTURES.items() if other.reads_tokens]
        raise ParameterError(f"arch is {arch!r}, but {dataset!r} is text; give {', '.join(others)} or {last}")
    for name in ("context_length", "vocabulary_size"):
        if getattr(trial, name) is not None and info.image_shape is not None:
            raise ParameterError(f"{name} is {getattr(trial, name)}, but {dataset!r} is no text; give null")
    if trial.patch_size is None:
        return
    if info.image_shape is None or not architecture.reads_patches:
        raise ParameterError(
            f"patch_size is {trial.patch_size}, but {arch!r} on {dataset!r} reads no patches; give null"
        )
    side = info.image_shape[-1]
    if side % trial.patch_size:
        divisors = ", ".join(str(size) for size in range(1, side + 1) if side % size == 0)
        raise ParameterError(
            f"patch_size is {trial.patch_size}, but images of {dataset!r} have {side} pixels a side; give one of {divisors}"
        )


def _check_free(trial: CollapseParameters) -> None:
    """Refuse what is said of an embedding and biases where it means nothing."""
    decay = trial.weight_decay_embedding
    if not trial.train_embedding and decay is not None:
        raise ParameterError(
            f"train_embedding is false and weight_decay_embedding is {decay}; give null: what is fixed does not decay"
        )
    if trial.train_embedding and trial.embedding_seed:
        raise ParameterError(
            f"embedding_seed is {trial.embedding_seed} and train_embedding is true; give 0, or train_embedding false"
        )
    given = [name for name in ("train_embedding", *_FREE_DECAYS) if getattr(trial, name) != trial.schema[name].default]
    if given and not ARCHITECTURES[trial.arch].has_embedding:
        *others, last = [name for name, other in ARCHITECTURES.items() if other.has_embedding]
        raise ParameterError(
            f"{given[0]} is {getattr(trial, given[0])!r}, but {trial.arch!r} is no network with such an embedding and such "
            f"biases; leave it at its default, or give arch {', '.join(others)} or {last}"
        )


_FREE_DECAYS = ("weight_decay_embedding", "weight_decay_biases")


def _check_backbone(trial: CollapseParameters) -> None:
    """Refuse parameters of a backbone where there is none, and images that the backbone cannot take."""
    arch, features = trial.arch, trial.weight_decay_features
    if not ARCHITECTURES[arch].has_backbone:
        if trial.regularise != "all" or features is not None:
            raise ParameterError(
                f"regularise is {trial.regularise!r} and weight_decay_features is {features}, but {arch!r} has no "
                "backbone; leave them at 'all' and null, or give arch resnet20_mlp"
            )
        return
    if (features is None) != (trial.regularise == "all"):
        raise ParameterError(
            f"regularise is {trial.regularise!r} and weight_decay_features is {features}; give the weight decay of the "
            "features with head_and_features, and null with all"
        )
    if trial.polish and features is not None:
        raise ParameterError(
            f"polish is {trial.polish} and regularise is 'head_and_features', whose term on the features is not in the "
            "objective that polish minimises; give polish 0, or regularise 'all'"
        )
    image_shape = PUBLISHED[trial.dataset].image_shape
    if image_shape is not None and min(image_shape[1:]) < SMALLEST_SIDE:
        raise ParameterError(
            f"images of {trial.dataset!r} have shape {image_shape}; {arch!r} halves them twice and takes "
            f"{SMALLEST_SIDE} pixels a side or more"
        )


def _check_stages(trial: CollapseParameters) -> None:
    """Refuse stages where there are none, and stages that do not lead from the image's size to each other."""
    arch, given, image_shape = trial.arch, trial.stages, PUBLISHED[trial.dataset].image_shape
    if not ARCHITECTURES[arch].is_staged:
        if given is not None:
            raise ParameterError(
                f"stages is {given!r}, but {arch!r} has none; leave it at null, or give arch resnet_conv"
            )
        return
    try:
        stages = stages_of(given, trial.dataset)
    except KeyError:
        raise ParameterError(
            f"arch is {arch!r}, and Table I has no stages for {trial.dataset!r}; give stages, as in 16x8x8*2"
        ) from None
    blocks, (_, rows, _) = sum(stage.blocks for stage in stages), image_shape or (0, 0, 0)
    if trial.depth != blocks or trial.width != trial.schema["width"].default:
        raise ParameterError(
            f"depth is {trial.depth} and width is {trial.width}, but the stages have {blocks} blocks and widths of "
            f"their own; give depth {blocks}, and leave width at {trial.schema['width'].default}"
        )
    for stage in stages:
        stride = max(1, round(rows / stage.side))
        if -(-rows // stride) != stage.side:
            raise ParameterError(
                f"stages have maps of {stage.side} rows after {rows}; no stride leads from these to those"
            )
        rows = stage.side


COLLAPSE = Collapse()
