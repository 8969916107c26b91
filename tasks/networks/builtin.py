"""Table of architectures: names for `arch`, and functions that make their networks. Importable without torch.

To add one, write a class below `Network` in a separate file and an entry here. No other code knows the names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from depthrate.tasks.data.dataset import DataShape
from depthrate.tasks.networks.batch_normed import DenseResNet, StagedResNet, stages_of
from depthrate.tasks.networks.convolutional import ResNetWithHead
from depthrate.tasks.networks.mlp import Mlp
from depthrate.tasks.networks.network import FreeParameters, Network
from depthrate.tasks.networks.parametrisation import ALPHA, Parametrisation
from depthrate.tasks.networks.residual import ResidualNetwork
from depthrate.tasks.networks.transformer import Transformer
from depthrate.tasks.parameters import ParameterError, Parameters


class NetworkParameters(Parameters):
    """Parameters that determine a network, together with the data's shape."""

    arch: str
    norm: str
    depth: int
    width: int
    loss: str
    last_bias: bool | None
    ln_eps: float
    train_embedding: bool
    weight_decay_embedding: float | None
    weight_decay_biases: float | None
    dataset: str
    stages: str | None
    patch_size: int | None
    regularise: str
    weight_decay_features: float | None
    block_scale: float = 1.0
    parametrisation: str = "sp"
    base_depth: int = 2
    base_width: int = 64


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A kind of network, and the parameters that apply to it."""

    make: Callable[[Any, DataShape], Network]
    """Makes a trial's network for data of a shape."""
    reads_tokens: bool = False
    """Whether it reads texts."""
    reads_patches: bool = False
    """Whether it cuts images into patches, so that `patch_size` applies."""
    is_staged: bool = False
    """Whether it consists of stages, so that `stages` applies, and `width` does not."""
    has_limit: bool = True
    """Whether its last features come from a LayerNorm, so that the objective has a known limit at infinite depth."""
    may_idle: bool = True
    """Whether an additional block can leave it unchanged at no cost, so that a deeper network's optimum is not higher."""
    has_embedding: bool = False
    """Whether it is an embedding and residual blocks with LayerNorm, so that `train_embedding`, the decays of embedding and
    biases, `block_scale` and `parametrisation` apply."""
    layers_without_branch: int = 0
    """Number of layers counted in `depth` that are no residual blocks."""
    has_backbone: bool = False
    """Whether it is a backbone with a head, so that `regularise` and `weight_decay_features` apply."""
    construction_matrices: int | None = None
    """Weight matrices per block of the explicit construction that reaches collapse, or None if none is known."""
    has_two_matrices: bool = False
    """Whether blocks apply two matrices in turn, so that the limit is reached only if lambda falls with depth."""

    @property
    def reads_vectors(self) -> bool:
        """Whether it reads samples as flat vectors."""
        return not (self.reads_patches or self.is_staged or self.has_backbone)


def has_last_bias(trial: NetworkParameters) -> bool:
    """Return whether the last layer has a bias: the trial's setting, or if unset, only for cross-entropy."""
    return bool(trial.loss == "ce" if trial.last_bias is None else trial.last_bias)


def parametrisation(trial: NetworkParameters) -> Parametrisation | None:
    """Return the factors of a trial's preset at its size, or None for `sp`."""
    if trial.parametrisation == "sp":
        return None
    outside = ARCHITECTURES[trial.arch].layers_without_branch
    depth_ratio = max(1, trial.depth - outside) / max(1, trial.base_depth - outside)
    return Parametrisation(ALPHA[trial.parametrisation], depth_ratio, trial.width / trial.base_width)


def block_scale(trial: NetworkParameters) -> float:
    """Return the factor of a trial's residual branches: the parameter times the preset's multiplier."""
    preset = parametrisation(trial)
    return float(trial.block_scale) * (1.0 if preset is None else preset.branch_multiplier)


def check_parametrisation(trial: NetworkParameters) -> None:
    """Reject parameters of branches that have no effect or no meaning for a trial's network.

    Raises:
        ParameterError: Names the parameter.
    """
    names, preset = ("block_scale", "parametrisation", "base_depth", "base_width"), trial.parametrisation
    changed = [name for name in names if getattr(trial, name) != getattr(NetworkParameters, name)]
    if changed and not ARCHITECTURES[trial.arch].has_embedding:
        raise ParameterError(
            f"{changed[0]} is {getattr(trial, changed[0])!r}, but {trial.arch!r} has no such branches. Leave it at its default."
        )
    if preset == "sp" and changed and changed[-1].startswith("base_"):
        raise ParameterError(
            f"{changed[-1]} is {getattr(trial, changed[-1])}, but parametrisation is 'sp'. Leave it at its default."
        )
    if preset != "sp" and trial.width != trial.base_width and not ARCHITECTURES[trial.arch].layers_without_branch:
        raise ParameterError(
            f"parametrisation is {preset!r}, width is {trial.width} and base_width is {trial.base_width}. Set base_width to "
            f"width: scores of {trial.arch!r} are divided by sqrt(width), and the preset's rates over widths assume width."
        )


def _branches(trial: NetworkParameters) -> dict[str, Any]:
    """Return the arguments that P1's networks share."""
    return {
        "pre_norm": trial.norm == "pre",
        "ln_eps": trial.ln_eps,
        "free": _free(trial),
        "block_scale": block_scale(trial),
        "parametrisation": parametrisation(trial),
    }


def _free(trial: NetworkParameters) -> FreeParameters:
    return FreeParameters(
        train_embedding=trial.train_embedding,
        decays_embedding=trial.weight_decay_embedding is not None,
        decays_biases=trial.weight_decay_biases is not None,
    )


def _sizes(trial: NetworkParameters, data: DataShape) -> dict[str, Any]:
    """Return the arguments that most networks take."""
    return {
        "depth": trial.depth,
        "width": trial.width,
        "num_classes": data.num_classes,
        "last_bias": has_last_bias(trial),
    }


def _residual(trial: NetworkParameters, data: DataShape, *, linear_layers: int) -> Network:
    return ResidualNetwork(
        linear_layers=linear_layers,
        input_dimensions=data.num_inputs,
        **_branches(trial),
        **_sizes(trial, data),
    )


def _transformer(trial: NetworkParameters, data: DataShape, *, attention_layers: int, mlp_layers: int) -> Network:
    is_text = data.vocabulary_size is not None
    positions = data.num_inputs if is_text else _num_patches(trial, data)
    return Transformer(
        attention_layers=attention_layers,
        mlp_layers=mlp_layers,
        positions=positions,
        patch_dimensions=None if is_text else data.num_inputs // positions,
        vocabulary_size=data.vocabulary_size,
        every_position=data.labels_tokens,
        image_shape=None if is_text else _image_shape(data),
        **_branches(trial),
        **_sizes(trial, data),
    )


def _resnet_with_head(trial: NetworkParameters, data: DataShape) -> Network:
    decays_features = trial.regularise == "head_and_features"
    return ResNetWithHead(
        image_shape=_image_shape(data),
        num_samples=data.num_samples,
        regularised_backbone=not decays_features,
        feature_decay=(trial.weight_decay_features or 0.0) if decays_features else 0.0,
        **_sizes(trial, data),
    )


def _dense(kind: type[DenseResNet] | type[Mlp], trial: NetworkParameters, data: DataShape) -> Network:
    return kind(input_dimensions=data.num_inputs, **_sizes(trial, data))


def _staged_resnet(trial: NetworkParameters, data: DataShape) -> Network:
    return StagedResNet(
        stages=stages_of(trial.stages, trial.dataset),
        image_shape=_image_shape(data),
        num_classes=data.num_classes,
        last_bias=has_last_bias(trial),
    )


def _image_shape(data: DataShape) -> tuple[int, int, int]:
    if len(data.sample_shape) != 3:
        raise ValueError(
            f"samples have shape {data.sample_shape}, but this network reads images [channels, rows, columns], or tokens of "
            "imdb or custom ones (marked by vocabulary_size next to x and y). For vectors, set arch to mlp, rn1 or rn2."
        )
    channels, rows, columns = data.sample_shape
    return channels, rows, columns


def _num_patches(trial: NetworkParameters, data: DataShape) -> int:
    """Return the number of square patches per image. Their side is `patch_size`, else a quarter of the image's."""
    _, rows, columns = _image_shape(data)
    side = trial.patch_size or columns // 4
    return (rows // side) * (columns // side)


def _attention(attention_layers: int, mlp_layers: int) -> Architecture:
    make = partial(_transformer, attention_layers=attention_layers, mlp_layers=mlp_layers)
    return Architecture(
        make=make, has_embedding=True, reads_tokens=True, reads_patches=True, has_two_matrices=mlp_layers == 2
    )


ARCHITECTURES: dict[str, Architecture] = {
    "rn1": Architecture(
        make=partial(_residual, linear_layers=1), has_embedding=True, layers_without_branch=1, construction_matrices=1
    ),
    "rn2": Architecture(
        make=partial(_residual, linear_layers=2),
        has_embedding=True,
        layers_without_branch=1,
        construction_matrices=2,
        has_two_matrices=True,
    ),
    "t11": _attention(1, 1),
    "t12": _attention(1, 2),
    "t21": _attention(2, 1),
    "t22": _attention(2, 2),
    "resnet20_mlp": Architecture(make=_resnet_with_head, has_backbone=True, has_limit=False, may_idle=False),
    "resnet_dense": Architecture(make=partial(_dense, DenseResNet), has_limit=False),
    "resnet_conv": Architecture(make=_staged_resnet, is_staged=True, has_limit=False),
    "mlp": Architecture(make=partial(_dense, Mlp), has_limit=False, may_idle=False),
}
