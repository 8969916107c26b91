"""Classes of published data with built-in networks, the subject of theory: the task `collapse`. Importable without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from depthrate.tasks.data.dataset import Dataset, DataShape
from depthrate.tasks.data.published import PUBLISHED
from depthrate.tasks.measures.named_columns import parse_measure
from depthrate.tasks.measures.path_columns import PATH_FIGURES
from depthrate.tasks.networks.batch_normed import stages_of
from depthrate.tasks.networks.builtin import ARCHITECTURES, block_scale, has_last_bias
from depthrate.tasks.networks.network import Network
from depthrate.tasks.parameters import ParameterError
from depthrate.tasks.supervised.parameters import SupervisedParameters, weight_decays
from depthrate.tasks.supervised.streaming import Streamed
from depthrate.tasks.supervised.targets.classes import Classes
from depthrate.tasks.supervised.targets.target import Fields
from depthrate.tasks.supervised.theory import UnconstrainedOptimum, gufm_optimum, is_other_problem, theorem_bound
from depthrate.tasks.training.polish.polish_parameters import check_polish

if TYPE_CHECKING:
    from depthrate.tasks.training.layers import Measure
    from depthrate.tasks.training.training import Row

MIN_SIDE = 8
"""Minimum side of images for a backbone, in pixels. At this size the last stage has two pixels per side."""


class Collapse(Classes):
    """Classes with a known optimum at infinite depth. Trials are compared with the optimum and can be trained to reach it."""

    name = "collapse"
    # Version 2 weighted class means by sample counts, and gave nc2 and nc3 of raw inputs as wide as the layers.
    version = 3
    doc = "Train deep residual networks or transformers and measure neural collapse layer by layer."
    figures = PATH_FIGURES
    declares: ClassVar[Mapping[str, Fields]] = {}

    def check(self, trial: SupervisedParameters, whole: Dataset | Streamed | None) -> None:
        super().check(trial, whole)
        _check_patches(trial)
        _check_free(trial)
        _check_backbone(trial)
        _check_stages(trial)

    def check_network(self, trial: SupervisedParameters, network: Network, data: DataShape) -> None:
        check_polish(trial, is_deepenable=not trial.continuation or network.neutral_block() is not None)

    def measure(self, dataset: Dataset, trial: SupervisedParameters, split: str) -> Measure:
        from depthrate.tasks.supervised.targets.classes_training import layer_and_weight_measurements

        def find_optimum(weight_decay_last: float) -> UnconstrainedOptimum | None:
            if not dataset.is_balanced:
                return None
            return unconstrained_optimum(trial, len(dataset.class_counts_K), weight_decay_last)

        names = parse_measure(trial.measure, self.custom)
        return layer_and_weight_measurements(dataset.class_counts_K, trial, split, names, find_optimum)

    def training_options(self, trials: Sequence[SupervisedParameters], dataset: Dataset) -> dict[str, Any]:
        """Return the seeds of the trials, and the columns that compare their objectives with the limit."""
        num_classes, closest = len(dataset.class_counts_K), None
        limits = [objective_limit(trial, num_classes) if dataset.is_balanced else None for trial in trials]
        if any(limit is not None for limit in limits):
            closest = dataset.closest_samples
        bounds = [
            None if limit is None or closest is None else objective_bound(trial, len(dataset.x_NI), closest)
            for limit, trial in zip(limits, trials, strict=True)
        ]

        def gap(index: int, row: Row, earlier: Sequence[Row]) -> dict[str, float | None]:
            limit = limits[index]
            return {
                "objective_gap": None if limit is None else row["objective"] - limit,
                "objective_bound": bounds[index],
            }

        return {"seeds": [draw_seed(trial) for trial in trials], "extra_curves": gap}


def draw_seed(trial: SupervisedParameters) -> int:
    """Return the seed of a trial's initialisation and data order."""
    if trial.seed_scope == "seed":
        return int(trial.seed)
    # Parameters added later change the seed only if they differ from their defaults, as with trial ids.
    later = trial.schema.added_later
    values = {name: value for name, value in vars(trial).items() if name not in later or value != later[name]}
    text = json.dumps(values, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def objective_bound(trial: SupervisedParameters, num_samples: int, closest: float) -> float | None:
    """Return the theorem's bound on the objective above its limit, or None for other networks and problems.

    closest: Smallest distance between two samples of norm 1.
    """
    is_known = ARCHITECTURES[trial.arch].construction_matrices == 1 and trial.norm == "post"
    if not is_known or is_other_problem(vars(trial)):
        return None
    shrinking = block_scale(trial) ** -2  # of decays, see theory._block_scale
    return theorem_bound(
        trial.depth - 1,
        num_samples=num_samples,
        width=trial.width,
        weight_decay=trial.weight_decay * shrinking,
        closest=closest,
        weight_decay_biases=(trial.weight_decay_biases or 0.0) * shrinking,
    )


def objective_limit(trial: SupervisedParameters, num_classes: int) -> float | None:
    """Return the objective's limit at infinite depth for balanced classes, or None with BatchNorm or smoothed labels."""
    optimum = unconstrained_optimum(trial, num_classes, weight_decays(trial)["last"])
    return None if optimum is None else optimum.objective


def unconstrained_optimum(
    trial: SupervisedParameters, num_classes: int, weight_decay_last: float
) -> UnconstrainedOptimum | None:
    """Return the optimum of the unconstrained model for balanced classes, or None with BatchNorm or smoothed labels."""
    if not ARCHITECTURES[trial.arch].has_limit or trial.label_smoothing:
        return None
    return gufm_optimum(
        trial.loss,
        num_classes=num_classes,
        width=trial.width,
        weight_decay_last=weight_decay_last,
        last_bias=has_last_bias(trial),
    )


def _check_patches(trial: SupervisedParameters) -> None:
    """Reject sizes that do not divide images, and patches for other networks, so that no two trials differ in name only."""
    if trial.patch_size is None:
        return
    image_shape = PUBLISHED[trial.dataset].image_shape
    if image_shape is None or not ARCHITECTURES[trial.arch].reads_patches:
        raise ParameterError(
            f"patch_size is {trial.patch_size}, but {trial.arch!r} on {trial.dataset!r} reads no patches. Set it to null."
        )
    side = image_shape[-1]
    if side % trial.patch_size:
        divisors = ", ".join(str(size) for size in range(1, side + 1) if side % size == 0)
        raise ParameterError(
            f"patch_size is {trial.patch_size}, but images of {trial.dataset!r} have {side} pixels per side, expected one of "
            f"{divisors}"
        )


def _check_free(trial: SupervisedParameters) -> None:
    """Reject parameters of an embedding and biases that have no effect."""
    decay = trial.weight_decay_embedding
    if not trial.train_embedding and decay is not None:
        raise ParameterError(
            f"train_embedding is false, but weight_decay_embedding is {decay}. Set it to null: fixed weights do not decay."
        )
    if trial.train_embedding and trial.embedding_seed:
        raise ParameterError(
            f"embedding_seed is {trial.embedding_seed}, but train_embedding is true. Set embedding_seed to 0, or "
            "train_embedding to false."
        )
    names = ("train_embedding", "weight_decay_embedding", "weight_decay_biases")
    changed = [name for name in names if getattr(trial, name) != trial.schema[name].default]
    if changed and not ARCHITECTURES[trial.arch].has_embedding:
        *others, last = [name for name, other in ARCHITECTURES.items() if other.has_embedding]
        raise ParameterError(
            f"{changed[0]} is {getattr(trial, changed[0])!r}, but {trial.arch!r} has no such embedding and biases. "
            f"Leave it at its default, or set arch to {', '.join(others)} or {last}."
        )


def _check_backbone(trial: SupervisedParameters) -> None:
    """Reject parameters of a backbone for networks without one, and images that a backbone cannot read."""
    arch, features = trial.arch, trial.weight_decay_features
    if not ARCHITECTURES[arch].has_backbone:
        if trial.regularise != "all" or features is not None:
            raise ParameterError(
                f"regularise is {trial.regularise!r} and weight_decay_features is {features}, but {arch!r} has no "
                "backbone. Leave them at 'all' and null, or set arch to resnet20_mlp."
            )
        return
    if (features is None) != (trial.regularise == "all"):
        raise ParameterError(
            f"regularise is {trial.regularise!r}, but weight_decay_features is {features}. Set it if regularise is "
            "'head_and_features', and leave it null if regularise is 'all'."
        )
    if trial.polish and features is not None:
        raise ParameterError(
            f"polish is {trial.polish}, but regularise is 'head_and_features', whose term on the features is not in the "
            "polished objective. Set polish to 0, or regularise to 'all'."
        )
    image_shape = PUBLISHED[trial.dataset].image_shape
    if image_shape is not None and min(image_shape[1:]) < MIN_SIDE:
        raise ParameterError(
            f"images of {trial.dataset!r} have shape {image_shape}, but {arch!r} halves them twice and needs at least "
            f"{MIN_SIDE} pixels per side"
        )


def _check_stages(trial: SupervisedParameters) -> None:
    """Reject stages for networks without stages, and stages that no strides connect to the image size and each other."""
    arch, image_shape = trial.arch, PUBLISHED[trial.dataset].image_shape
    if not ARCHITECTURES[arch].is_staged:
        if trial.stages is not None:
            raise ParameterError(
                f"stages is {trial.stages!r}, but {arch!r} has none. Leave it at null, or set arch to resnet_conv."
            )
        return
    if image_shape is None:  # text, which no staged network reads
        return
    try:
        stages = stages_of(trial.stages, trial.dataset)
    except KeyError:
        raise ParameterError(
            f"arch is {arch!r}, but Table I has no stages for {trial.dataset!r}. Set stages, as in 16x8x8*2."
        ) from None
    blocks, (_, rows, _) = sum(stage.blocks for stage in stages), image_shape
    if trial.depth != blocks or trial.width != trial.schema["width"].default:
        raise ParameterError(
            f"depth is {trial.depth} and width is {trial.width}, but the stages have {blocks} blocks and their own widths. "
            f"Set depth to {blocks}, and leave width at {trial.schema['width'].default}."
        )
    for stage in stages:
        stride = max(1, round(rows / stage.side))
        if -(-rows // stride) != stage.side:
            raise ParameterError(
                f"stages have maps of {stage.side} rows after {rows}, but no stride leads from {rows} to {stage.side}"
            )
        rows = stage.side
