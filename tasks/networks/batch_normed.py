"""Residual networks with BatchNorm, measured at the inputs of blocks, over a trial axis. Importable without torch.

The features between measured blocks have one shape, so that they form a path.

A map has shape [N, T x C, rows, columns]: T trials are T groups of channels of one tensor. On a GPU the trials of a pack run as
groups. On a CPU they run separately, so that a trial does not depend on its pack (grouped convolutions are not faster there).
Shapes: T trials, N samples, I numbers per image, D = width, C channels, K classes.
Sources: He et al., Deep Residual Learning for Image Recognition (the basic block). P3 Progressive Feedforward Collapse of
ResNet Training, Table I (the sizes). The docstrings state the choices that it leaves open.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from depthrate.tasks.networks.network import NO_STATE, Layer, Network, ParameterSpec, StateSpec, StepCost, Tensors
from depthrate.tasks.networks.operations import last, linear

if TYPE_CHECKING:
    from torch import Tensor

BATCH_NORM_EPS = 1e-5
BATCH_NORM_MOMENTUM = 0.1
"""Weight of the batch's mean and variance in the running ones after a step (torch's default)."""
SECONDS_PER_PRODUCT = 3.8e-11
"""Seconds of a step per multiply-add, forward and backward (measured on ResNets of up to 23 convolutions)."""
SECONDS_PER_STORED_NUMBER = 4.6e-9
"""Seconds of a step per number stored for the backward pass (measured on the same)."""


class Normed(NamedTuple):
    """One linear map or convolution without bias, followed by a BatchNorm."""

    name: str
    shape: tuple[int, ...]
    stride: int = 1

    @property
    def fan_in(self) -> int:
        """Number of inputs summed by one output."""
        return self.shape[1] * (9 if len(self.shape) == 4 else 1)


@dataclass(frozen=True)
class ForwardPass:
    """One pass of trials through a network with BatchNorm, in training or evaluation mode."""

    parameters: Tensors
    state: Tensors
    """Running statistics before the pass."""
    training: bool
    next_state: dict[str, Tensor] = field(default_factory=dict)
    """Running statistics after the pass, filled in as it proceeds. They change only in training."""

    def of_trial(self, trial: int) -> ForwardPass:
        only, tensors = slice(trial, trial + 1), (self.parameters, self.state)
        weights, running = ({name: values[only] for name, values in named.items()} for named in tensors)
        return ForwardPass(weights, running, self.training)

    def convolved(self, maps: Tensor, normed: Normed) -> Tensor:
        """Convolve each trial's maps with its 3 x 3 weights, with zeros around the image, and apply the BatchNorm."""
        from torch.nn import functional

        weight_TOCHW = self.parameters[f"C_{normed.name}"]
        groups, weight = len(weight_TOCHW), weight_TOCHW.flatten(0, 1)
        maps = functional.conv2d(maps, weight, stride=normed.stride, padding=1, groups=groups)
        return self.normalised(maps, normed)

    def normalised(self, values: Tensor, normed: Normed) -> Tensor:
        """Apply the BatchNorm of a map to values [N, T x C, ...]."""
        from torch.nn import functional

        scale, shift = (self.parameters[f"{name}_{normed.name}"].flatten() for name in ("scale", "shift"))
        before = {name: self.state[name] for name in (f"mean_{normed.name}", f"var_{normed.name}")}
        mean, var = (t.flatten().clone() if self.training else t.flatten() for t in before.values())
        options = (scale, shift, self.training, BATCH_NORM_MOMENTUM, BATCH_NORM_EPS)
        out = functional.batch_norm(values, mean, var, *options)
        for (name, tensor), after in zip(before.items(), (mean, var), strict=True):
            self.next_state[name] = after.view_as(tensor)
        return out


@dataclass(frozen=True, kw_only=True)
class BatchNormed(Network):
    """Base of networks with BatchNorm: parameters, training and evaluation mode, and separate trials on a CPU.

    Decay groups: `hidden` for all maps and for BatchNorm's scale and shift, `last` for the last layer's weight.
    """

    last_weight = "W_L"
    holds_only_features = True
    num_classes: int
    last_bias: bool

    @property
    @abstractmethod
    def read_width(self) -> int:
        """Width of the last layer's input."""

    @property
    def decay_of_maps(self) -> str | None:
        """Decay group of the maps and of BatchNorm's scale and shift."""
        return "hidden"

    @abstractmethod
    def maps(self) -> list[Normed]:
        """Return the maps with BatchNorm, in the order of the forward pass."""

    def head_specs(self) -> list[ParameterSpec]:
        """Return the parameters between the maps and the last layer. Default: none."""
        return []

    @abstractmethod
    def _stream(self, run: ForwardPass, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield the features of the measured layers."""

    def _output(self, parameters: Tensors, h: Tensor) -> Tensor:
        """Return the output [T, N, K] from the last features of `_stream`."""
        return linear(parameters, "L", h)

    def parameter_specs(self) -> list[ParameterSpec]:
        specs, decay, width = [], self.decay_of_maps, self.read_width
        for normed in self.maps():
            specs.append(ParameterSpec(f"C_{normed.name}", normed.shape, normed.fan_in, decay))
            specs.append(ParameterSpec(f"scale_{normed.name}", normed.shape[:1], 1, decay, initial=1.0))
            specs.append(ParameterSpec(f"shift_{normed.name}", normed.shape[:1], 1, decay, initial=0.0))
        specs += [*self.head_specs(), ParameterSpec("W_L", (self.num_classes, width), width, "last")]
        if self.last_bias:
            specs.append(ParameterSpec("b_L", (self.num_classes,), width, None))
        return specs

    def state_specs(self) -> list[StateSpec]:
        return [
            StateSpec(f"{name}_{normed.name}", normed.shape[:1], initial)
            for normed in self.maps()
            for name, initial in (("mean", 0.0), ("var", 1.0))
        ]

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        yield from self._layers(ForwardPass(parameters, state, training=False), x_TNI)

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        return self._output(parameters, last(self._layers(ForwardPass(parameters, state, training=False), x_TNI)))

    def training_logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return the output [T, N, K] with the batch's statistics, and the running ones after it."""
        run = ForwardPass(parameters, state, training=True)
        return self._output(parameters, last(self._layers(run, x_TNI))), run.next_state

    def _layers(self, run: ForwardPass, x_TNI: Tensor) -> Iterator[Tensor]:
        """Yield `_stream` of all trials. On a CPU trials run separately, so that a trial does not depend on its pack."""
        num_trials = x_TNI.shape[0]
        if num_trials == 1 or x_TNI.device.type != "cpu":
            yield from self._stream(run, x_TNI)
            return
        runs = [run.of_trial(trial) for trial in range(num_trials)]
        streams = [self._stream(alone, x_TNI[trial : trial + 1]) for trial, alone in enumerate(runs)]
        for layers in zip(*streams, strict=True):
            yield _stacked(layers)
        for name in runs[0].next_state:
            run.next_state[name] = _stacked([alone.next_state[name] for alone in runs])


@dataclass(frozen=True, kw_only=True)
class DenseResNet(BatchNormed):
    """A residual network of linear layers: h_0 = relu(BN(W_0 x)), h_l = relu(h_{l-1} + BN(W_l2 relu(BN(W_l1 h_{l-1})))).

    Layer l is the output of block l, and layer 0 the input of block 1. Linear layers before a BatchNorm have no bias.
    """

    depth: int
    width: int
    input_dimensions: int

    @property
    def min_batch_size(self) -> int:
        return 2

    @property
    def read_width(self) -> int:
        return self.width

    def maps(self) -> list[Normed]:
        square = (self.width, self.width)
        blocks = [Normed(f"{block}.{number}", square) for block in range(1, self.depth + 1) for number in (1, 2)]
        return [Normed("0", (self.width, self.input_dimensions)), *blocks]

    def layers(self) -> list[Layer]:
        return [Layer(number, (self.width,)) for number in range(self.depth + 1)]

    def step_cost(self) -> StepCost:
        """Return the cost of a step. Each linear layer stores its input, BatchNorm's and ReLU's for the backward pass."""
        products = 2 * self.depth + 1
        multiply_adds = 2 * self.depth * self.width**2 + self.width * self.input_dimensions
        return StepCost(products, multiply_adds, kept=3 * self.width * products)

    def _stream(self, run: ForwardPass, x_TNI: Tensor) -> Iterator[Tensor]:
        def mapped(h_TND: Tensor, normed: Normed) -> Tensor:
            product_TND = h_TND.bmm(run.parameters[f"C_{normed.name}"].mT)
            out = run.normalised(product_TND.transpose(0, 1).flatten(1), normed)  # trials become channels for BatchNorm
            return out.view(len(out), len(product_TND), -1).transpose(0, 1)

        first, *others = self.maps()
        h_TND = mapped(x_TNI, first).relu()
        yield h_TND
        for one, two in zip(others[::2], others[1::2], strict=True):
            h_TND = (mapped(mapped(h_TND, one).relu(), two) + h_TND).relu()
            yield h_TND


@dataclass(frozen=True)
class Stage:
    """Blocks on maps of one shape."""

    channels: int
    side: int
    """Rows of a map. The image's shape determines the columns."""
    blocks: int


@dataclass(frozen=True, kw_only=True)
class StagedResNet(BatchNormed):
    """A convolutional residual network of stages. Each stage starts with relu(BN(C x)), whose stride leads to its maps' size.
    Its blocks are h = relu(h + BN(C_2 relu(BN(C_1 h)))), and the last layer reads the mean over the pixels.

    P3's Table I gives the stages and leaves open how they are connected. Here a separate convolution connects them, so that all
    blocks of a stage read maps of one shape. Layers are the inputs of the last stage's blocks and its output. The last is layer
    depth, the number of all blocks.
    """

    stages: tuple[Stage, ...]
    image_shape: tuple[int, int, int]

    @property
    def depth(self) -> int:
        return sum(stage.blocks for stage in self.stages)

    @property
    def read_width(self) -> int:
        return self.stages[-1].channels

    def maps(self) -> list[Normed]:
        """Return the convolution that leads to each stage, and two per block."""
        convolutions, channels, rows = [], self.image_shape[0], self.image_shape[1]
        for number, stage in enumerate(self.stages, 1):
            size = (stage.channels, stage.channels, 3, 3)
            convolutions.append(Normed(f"{number}.0", (stage.channels, channels, 3, 3), round(rows / stage.side)))
            convolutions += [Normed(f"{number}.{b}.{c}", size) for b in range(1, stage.blocks + 1) for c in (1, 2)]
            channels, rows = stage.channels, stage.side
        return convolutions

    def _pixels(self) -> list[int]:
        """Return the number of pixels in each stage's maps."""
        rows, columns = self.image_shape[1:]
        pixels = []
        for stage in self.stages:
            columns = -(-columns // round(rows / stage.side))
            rows = stage.side
            pixels.append(rows * columns)
        return pixels

    def layers(self) -> list[Layer]:
        """Return the inputs of the last stage's blocks and its output, [C, rows, columns]."""
        stage, depth = self.stages[-1], self.depth
        shape = (stage.channels, stage.side, self._pixels()[-1] // stage.side)
        return [Layer(number, shape) for number in range(depth - stage.blocks, depth + 1)]

    @property
    def min_batch_size(self) -> int:
        return 1 if min(self._pixels()) > 1 else 2

    @property
    def rows_per_sample(self) -> int:
        return self._pixels()[-1]

    def step_cost(self) -> StepCost:
        """Return the cost of a step. Each convolution stores its input, BatchNorm's and ReLU's for the backward pass."""
        multiply_adds, kept = 0.0, 0.0
        for stage, pixels in zip(self.stages, self._pixels(), strict=True):
            multiply_adds += 9 * (2 * stage.blocks + 1) * stage.channels**2 * pixels
            kept += 3 * (2 * stage.blocks + 1) * stage.channels * pixels
        return cost_of_maps(len(self.maps()) + 1, multiply_adds, kept, self.rows_per_sample)

    def _output(self, parameters: Tensors, h: Tensor) -> Tensor:
        return super()._output(parameters, h.mean((3, 4)))

    def _stream(self, run: ForwardPass, x_TNI: Tensor) -> Iterator[Tensor]:
        num_trials = x_TNI.shape[0]

        def by_trial(maps: Tensor) -> Tensor:
            return maps.view(len(maps), num_trials, -1, *maps.shape[2:]).transpose(0, 1)

        convolutions, maps = iter(self.maps()), as_maps(x_TNI, self.image_shape)
        for stage in self.stages:
            is_last = stage is self.stages[-1]
            maps = run.convolved(maps, next(convolutions)).relu()
            if is_last:
                yield by_trial(maps)
            for _ in range(stage.blocks):
                inner = run.convolved(maps, next(convolutions)).relu()
                maps = (run.convolved(inner, next(convolutions)) + maps).relu()
                if is_last:
                    yield by_trial(maps)


def cost_of_maps(products: int, multiply_adds: float, kept: float, rows_per_sample: int) -> StepCost:
    """Return the cost of a step from the multiply-adds and stored numbers per sample."""
    per_row = multiply_adds / rows_per_sample, kept / rows_per_sample
    return StepCost(
        products, per_row[0], kept=per_row[1], eager_s=SECONDS_PER_PRODUCT, kept_s=SECONDS_PER_STORED_NUMBER
    )


def as_maps(x_TNI: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Reshape flat images [T, N, I] to maps."""
    num_trials, num_samples, _ = x_TNI.shape
    images = x_TNI.reshape(num_trials, num_samples, *image_shape).transpose(0, 1)
    return images.reshape(num_samples, num_trials * image_shape[0], *image_shape[1:])


def _stacked(of_trials: Sequence[Tensor]) -> Tensor:
    """Concatenate the tensors [1, ...] of several trials to one [T, ...]."""
    import torch

    return torch.cat(list(of_trials))


STAGES = {
    "fashion_mnist": "32x14x14*5 64x7x7*4",
    "cifar10": "64x16x16*2 128x8x8*3 256x4x4*4",
    "stl10": "64x48x48*5 128x24x24*5 256x12x12*5 512x6x6*5",
    "cifar100": "64x32x32*3 128x16x16*3 256x8x8*4 512x4x4*4",
}
"""Stages of P3's Table I, by data set."""
EQUAL_SIZES = {"mnist": "fashion_mnist", "kmnist": "fashion_mnist", "cifar10_batch1": "cifar10"}
"""Data sets with images of the size of another's."""


def stages_of(text: str | None, dataset: str) -> tuple[Stage, ...]:
    """Parse a trial's stages, channels x rows x columns, times blocks. None: Table I's for its data set.

    Raises:
        KeyError: The trial sets none, and Table I has none.
    """
    stages = []
    for part in (STAGES[EQUAL_SIZES.get(dataset, dataset)] if text is None else text).split():
        shape, _, blocks = part.partition("*")
        channels, rows, _ = map(int, shape.split("x"))
        stages.append(Stage(channels, rows, int(blocks)))
    return tuple(stages)
