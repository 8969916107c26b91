"""The task `collapse`: its checks, and all of it put together. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from depthrate.tasks.collapse.measurements import MEASUREMENTS, PANELS
from depthrate.tasks.collapse.schema import (
    SCHEMA,
    chain_shapes,
    data_shape,
    measured,
    network_of,
    num_samples,
    pack_shape,
)
from depthrate.tasks.data import published
from depthrate.tasks.data.published import PUBLISHED, check_dataset, check_test
from depthrate.tasks.data.sources import DataSource
from depthrate.tasks.networks.batch_normed import stages_of
from depthrate.tasks.networks.builtin import ARCHITECTURES
from depthrate.tasks.schema import ParameterError
from depthrate.tasks.task import Params, Task, TaskContext, TrialResult
from depthrate.tasks.training.cost import estimate_s, max_pack_size
from depthrate.tasks.training.engine import chosen_engine
from depthrate.tasks.training.memory import memory_bytes
from depthrate.tasks.training.parameters import check_training
from depthrate.tasks.training.polish_parameters import check_polish

SMALLEST_SIDE = 8
"""Of images for a backbone: two pixels are left of it in the last stage."""


def check_trial(params: Params) -> None:
    """Refuse combinations that cannot run.

    Raises:
        ParameterError: naming the parameters that exclude each other.
    """
    check_training(params, num_samples(params))
    most = PUBLISHED[params["dataset"]].smallest_class
    if params["samples_per_class"] is not None and params["samples_per_class"] > most:
        raise ParameterError(
            f"samples_per_class is {params['samples_per_class']}, but the smallest class of {params['dataset']!r} has "
            f"{most} samples; give at most that, or null for all"
        )
    _check_inputs(params)
    _check_backbone(params)
    _check_stages(params)
    check_polish(params, is_deepenable=not params["continuation"] or _is_deepenable(params))


def _is_deepenable(params: Params) -> bool:
    return network_of(params, data_shape(params)).neutral_block() is not None


def _check_inputs(params: Params) -> None:
    """Refuse parameters of patches and texts where there are none, so that no two trials differ in name only."""
    info, architecture = PUBLISHED[params["dataset"]], ARCHITECTURES[params["arch"]]
    arch, dataset = params["arch"], params["dataset"]
    if info.image_shape is None and not architecture.reads_tokens:
        *others, last = [name for name, other in ARCHITECTURES.items() if other.reads_tokens]
        raise ParameterError(f"arch is {arch!r}, but {dataset!r} is text; give {', '.join(others)} or {last}")
    for name in ("context_length", "vocabulary_size"):
        if params[name] is not None and info.image_shape is not None:
            raise ParameterError(f"{name} is {params[name]}, but {dataset!r} is no text; give null")
    if params["patch_size"] is None:
        return
    if info.image_shape is None or not architecture.reads_patches:
        raise ParameterError(
            f"patch_size is {params['patch_size']}, but {arch!r} on {dataset!r} reads no patches; give null"
        )
    side = info.image_shape[-1]
    if side % params["patch_size"]:
        divisors = ", ".join(str(size) for size in range(1, side + 1) if side % size == 0)
        raise ParameterError(
            f"patch_size is {params['patch_size']}, but images of {dataset!r} have {side} pixels a side; give one of {divisors}"
        )


def _check_backbone(params: Params) -> None:
    """Refuse parameters of a backbone where there is none, and images that the backbone cannot take."""
    arch, features = params["arch"], params["weight_decay_features"]
    if not ARCHITECTURES[arch].has_backbone:
        if params["regularise"] != "all" or features is not None:
            raise ParameterError(
                f"regularise is {params['regularise']!r} and weight_decay_features is {features}, but {arch!r} has no "
                "backbone; leave them at 'all' and null, or give arch resnet20_mlp"
            )
        return
    if (features is None) != (params["regularise"] == "all"):
        raise ParameterError(
            f"regularise is {params['regularise']!r} and weight_decay_features is {features}; give the weight decay of the "
            "features with head_and_features, and null with all"
        )
    if params["polish"] and features is not None:
        raise ParameterError(
            f"polish is {params['polish']} and regularise is 'head_and_features', whose term on the features is not in the "
            "objective that polish minimises; give polish 0, or regularise 'all'"
        )
    image_shape = PUBLISHED[params["dataset"]].image_shape
    if image_shape is not None and min(image_shape[1:]) < SMALLEST_SIDE:
        raise ParameterError(
            f"images of {params['dataset']!r} have shape {image_shape}; {arch!r} halves them twice and takes "
            f"{SMALLEST_SIDE} pixels a side or more"
        )


def _check_stages(params: Params) -> None:
    """Refuse stages where there are none, and stages that do not lead from the image's size to each other."""
    arch, given, image_shape = params["arch"], params["stages"], PUBLISHED[params["dataset"]].image_shape
    if not ARCHITECTURES[arch].is_staged:
        if given is not None:
            raise ParameterError(
                f"stages is {given!r}, but {arch!r} has none; leave it at null, or give arch resnet_conv"
            )
        return
    try:
        stages = stages_of(given, params["dataset"])
    except KeyError:
        raise ParameterError(
            f"arch is {arch!r}, and Table I has no stages for {params['dataset']!r}; give stages, as in 16x8x8*2"
        ) from None
    blocks, (_, rows, _) = sum(stage.blocks for stage in stages), image_shape or (0, 0, 0)
    if params["depth"] != blocks or params["width"] != SCHEMA["width"].default:
        raise ParameterError(
            f"depth is {params['depth']} and width is {params['width']}, but the stages have {blocks} blocks and widths of "
            f"their own; give depth {blocks}, and leave width at {SCHEMA['width'].default}"
        )
    for stage in stages:
        stride = max(1, round(rows / stage.side))
        if -(-rows // stride) != stage.side:
            raise ParameterError(
                f"stages have maps of {stage.side} rows after {rows}; no stride leads from these to those"
            )
        rows = stage.side


def check_data(trials: Sequence[Params], source: DataSource) -> None:
    """Refuse trials whose data set is not there.

    Raises:
        DatasetError: saying where it looked and how to get the files.
    """
    for name in dict.fromkeys(params["dataset"] for params in trials):
        check_dataset(name, source)
    for name in dict.fromkeys(params["dataset"] for params in trials if params["test"]):
        check_test(name, source)


def check_contents(trials: Sequence[Params], source: DataSource) -> None:
    """Refuse trials whose data set is damaged.

    Raises:
        DatasetError: naming the file, what was expected of it, and what to do.
    """
    for name in dict.fromkeys(params["dataset"] for params in trials):
        published.check_contents(name, source)


def run(trials: Sequence[Params], context: TaskContext) -> Iterator[TrialResult]:
    """Train and measure a pack; torch is imported here and not before."""
    from depthrate.tasks.collapse.pack import run_pack

    yield from run_pack(trials, context)


COLLAPSE = Task(
    name="collapse",
    version=3,  # 2 weighted class means by their samples, and had nc2 and nc3 of the raw input where its size was the width
    schema=SCHEMA,
    run=run,
    fused=True,
    doc="Train deep residual networks or transformers and measure neural collapse layer by layer.",
    measurements=MEASUREMENTS,
    panels=PANELS,
    check_trial=check_trial,
    check_data=check_data,
    check_contents=check_contents,
    chained=lambda params: "depth" if params["continuation"] else None,
    max_pack_size=lambda params, device: max_pack_size(pack_shape(params), device),
    measured=measured,
    memory_bytes=lambda params, num_trials, device: memory_bytes(pack_shape(params), num_trials, device),
    estimate_s=lambda params: sum(map(estimate_s, chain_shapes(params))),
    engine=lambda params, asked, device: chosen_engine(asked, chain_shapes(params)[0], device),
)
