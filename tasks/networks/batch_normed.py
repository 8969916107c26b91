"""Residual networks with BatchNorm, whose blocks' inputs are measured, over a trial axis. Importable without torch.

Between the blocks that are measured features have one shape, so that a path leads through them. Shapes: T trials, N samples,
I numbers of an image, D = width, C channels, K classes.
Sources: He et al., Deep Residual Learning for Image Recognition (the basic block); P3 Progressive Feedforward Collapse of
ResNet Training, Table I (the sizes; where it leaves something open, the docstrings say what was chosen).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from depthrate.tasks.networks.convolutions import as_maps, batch_norm, convolution, cost_of_maps, stacked
from depthrate.tasks.networks.network import NO_STATE, Layer, Network, ParameterSpec, StateSpec, StepCost, Tensors
from depthrate.tasks.networks.operations import last, linear

if TYPE_CHECKING:
    from torch import Tensor


class Normed(NamedTuple):
    """One linear map or convolution without bias, and the BatchNorm behind it."""

    name: str
    shape: tuple[int, ...]
    stride: int = 1

    @property
    def fan_in(self) -> int:
        """Inputs that one output of it sums over."""
        return self.shape[1] * (9 if len(self.shape) == 4 else 1)


class BatchNormed(Network):
    """What both kinds share: parameters of maps with BatchNorm, each trial alone on a CPU, training and evaluation mode.

    Decay groups: `hidden` for all maps and for BatchNorm's scale and shift, `last` for the last layer's weight.
    """

    last_weight = "W_L"
    holds_only_features = True
    num_classes: int
    last_bias: bool

    @abstractmethod
    def maps(self) -> list[Normed]:
        """Return the maps with BatchNorm, in the order of the forward pass."""

    @abstractmethod
    def _stream(
        self, parameters: Tensors, x_TNI: Tensor, state: Tensors, moved: dict[str, Tensor], *, training: bool
    ) -> Iterator[Tensor]:
        """Yield the features of the measured layers; `moved` receives the running statistics after a training step."""

    def _read_out(self, h: Tensor) -> Tensor:
        """Return what the last layer reads of the last features, [T, N, D]."""
        return h

    @property
    @abstractmethod
    def _read_width(self) -> int:
        """Numbers of a sample that the last layer reads."""

    def parameter_specs(self) -> list[ParameterSpec]:
        """Return the parameters in the order in which they are drawn and stored."""
        specs = []
        for normed in self.maps():
            specs.append(ParameterSpec(f"C_{normed.name}", normed.shape, normed.fan_in, "hidden"))
            specs.append(ParameterSpec(f"scale_{normed.name}", normed.shape[:1], 1, "hidden", initial=1.0))
            specs.append(ParameterSpec(f"shift_{normed.name}", normed.shape[:1], 1, "hidden", initial=0.0))
        width = self._read_width
        specs.append(ParameterSpec("W_L", (self.num_classes, width), width, "last"))
        if self.last_bias:
            specs.append(ParameterSpec("b_L", (self.num_classes,), width, None))
        return specs

    def state_specs(self) -> list[StateSpec]:
        """Return BatchNorm's running means and variances."""
        specs = []
        for normed in self.maps():
            specs += [
                StateSpec(f"mean_{normed.name}", normed.shape[:1], 0.0),
                StateSpec(f"var_{normed.name}", normed.shape[:1], 1.0),
            ]
        return specs

    def features(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Iterator[Tensor]:
        """Yield the features of the measured layers, [T, N, *shape], with the running statistics."""
        yield from self._layers(parameters, x_TNI, state, {}, training=False)

    def logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors = NO_STATE) -> Tensor:
        """Return the output [T, N, K] with the running statistics."""
        return self._output(parameters, last(self._layers(parameters, x_TNI, state, {}, training=False)))

    def training_logits(self, parameters: Tensors, x_TNI: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
        """Return the output [T, N, K] with the batch's statistics, and the running ones after it."""
        moved: dict[str, Tensor] = {}
        features = last(self._layers(parameters, x_TNI, state, moved, training=True))
        return self._output(parameters, features), moved

    def _output(self, parameters: Tensors, h: Tensor) -> Tensor:
        return linear(parameters, "L", self._read_out(h))

    def _layers(
        self, parameters: Tensors, x_TNI: Tensor, state: Tensors, moved: dict[str, Tensor], *, training: bool
    ) -> Iterator[Tensor]:
        """Yield the features layer by layer: on a CPU each trial goes alone, so that its pack changes no number of it."""
        num_trials = x_TNI.shape[0]
        if num_trials == 1 or x_TNI.device.type != "cpu":
            yield from self._stream(parameters, x_TNI, state, moved, training=training)
            return
        after: list[dict[str, Tensor]] = [{} for _ in range(num_trials)]
        streams = []
        for trial in range(num_trials):
            own = slice(trial, trial + 1)
            weights, running = (
                {name: values[own] for name, values in tensors.items()} for tensors in (parameters, state)
            )
            streams.append(self._stream(weights, x_TNI[own], running, after[trial], training=training))
        for layers in zip(*streams, strict=True):
            yield stacked(layers)
        moved |= {name: stacked([state_of_trial[name] for state_of_trial in after]) for name in after[0]}

    def _normalised(
        self,
        values: Tensor,
        each: Normed,
        parameters: Tensors,
        state: Tensors,
        moved: dict[str, Tensor],
        *,
        training: bool,
    ) -> Tensor:
        """Return values [N, T x C, ...] behind their BatchNorm."""
        running = (f"mean_{each.name}", f"var_{each.name}")
        given = (parameters[f"scale_{each.name}"], parameters[f"shift_{each.name}"], *(state[name] for name in running))
        out, mean, var = batch_norm(values, *given, training=training)
        moved.update(zip(running, (mean, var), strict=True))
        return out


@dataclass(frozen=True, kw_only=True)
class DenseResNet(BatchNormed):
    """A residual network of linear layers: h_0 = relu(BN(W_0 x)), h_l = relu(h_{l-1} + BN(W_l2 relu(BN(W_l1 h_{l-1})))).

    Layer l is the output of block l, layer 0 what block 1 reads. Linear layers before a BatchNorm have no bias.
    """

    depth: int
    width: int
    input_dimensions: int
    num_classes: int
    last_bias: bool

    @property
    def min_batch_size(self) -> int:
        """Fewest samples of a training step."""
        return 2

    @property
    def _read_width(self) -> int:
        return self.width

    def maps(self) -> list[Normed]:
        """Return the embedding, and two linear layers of each block."""
        square = (self.width, self.width)
        blocks = [Normed(f"{block}.{number}", square) for block in range(1, self.depth + 1) for number in (1, 2)]
        return [Normed("0", (self.width, self.input_dimensions)), *blocks]

    def layers(self) -> list[Layer]:
        """Return layer 0 to layer depth."""
        return [Layer(number, (self.width,)) for number in range(self.depth + 1)]

    def step_cost(self) -> StepCost:
        """Return what a step takes; each linear layer keeps its input, BatchNorm's and ReLU's for the backward pass."""
        products = 2 * self.depth + 1
        multiply_adds = 2 * self.depth * self.width**2 + self.width * self.input_dimensions
        return StepCost(products, multiply_adds, kept=3 * self.width * products)

    def _stream(
        self, parameters: Tensors, x_TNI: Tensor, state: Tensors, moved: dict[str, Tensor], *, training: bool
    ) -> Iterator[Tensor]:
        def mapped(h_TND: Tensor, each: Normed) -> Tensor:
            product_TND = h_TND.bmm(parameters[f"C_{each.name}"].mT)
            rows = product_TND.transpose(0, 1).flatten(1)  # BatchNorm sees the trials as channels
            out = self._normalised(rows, each, parameters, state, moved, training=training)
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
    """Rows of a map; columns follow from the image's."""
    blocks: int


@dataclass(frozen=True, kw_only=True)
class StagedResNet(BatchNormed):
    """A convolutional residual network of stages. Each stage begins with relu(BN(C x)), whose stride leads to its maps' size;
    its blocks are h = relu(h + BN(C_2 relu(BN(C_1 h)))), and the last layer reads the mean over the pixels.

    P3's Table I gives the stages and leaves open how one leads to the next: a convolution of its own, so that all blocks of a
    stage read maps of one shape. Layers are the inputs of the last stage's blocks and its output; the last is layer depth,
    the number of all blocks.
    """

    stages: tuple[Stage, ...]
    image_shape: tuple[int, int, int]
    num_classes: int
    last_bias: bool

    @property
    def depth(self) -> int:
        """Blocks of all stages."""
        return sum(stage.blocks for stage in self.stages)

    @property
    def _read_width(self) -> int:
        return self.stages[-1].channels

    def maps(self) -> list[Normed]:
        """Return of each stage the convolution that leads to it, and two of each block."""
        found, channels, rows = [], self.image_shape[0], self.image_shape[1]
        for number, stage in enumerate(self.stages, 1):
            size = (stage.channels, stage.channels, 3, 3)
            found.append(Normed(f"{number}.0", (stage.channels, channels, 3, 3), round(rows / stage.side)))
            found += [Normed(f"{number}.{b}.{c}", size) for b in range(1, stage.blocks + 1) for c in (1, 2)]
            channels, rows = stage.channels, stage.side
        return found

    def _pixels(self) -> list[int]:
        """Return the pixels of each stage's maps."""
        rows, columns = self.image_shape[1:]
        found = []
        for stage in self.stages:
            columns = -(-columns // round(rows / stage.side))
            rows = stage.side
            found.append(rows * columns)
        return found

    def layers(self) -> list[Layer]:
        """Return the inputs of the last stage's blocks and its output, [C, rows, columns]."""
        stage, depth = self.stages[-1], self.depth
        shape = (stage.channels, stage.side, self._pixels()[-1] // stage.side)
        return [Layer(number, shape) for number in range(depth - stage.blocks, depth + 1)]

    @property
    def min_batch_size(self) -> int:
        """Fewest samples of a training step."""
        return 1 if min(self._pixels()) > 1 else 2

    @property
    def rows_per_sample(self) -> int:
        """The pixels of the last stage."""
        return self._pixels()[-1]

    def step_cost(self) -> StepCost:
        """Return what a step takes; each convolution keeps its input, BatchNorm's and ReLU's for the backward pass."""
        multiply_adds, kept = 0.0, 0.0
        for stage, pixels in zip(self.stages, self._pixels(), strict=True):
            multiply_adds += 9 * (2 * stage.blocks + 1) * stage.channels**2 * pixels
            kept += 3 * (2 * stage.blocks + 1) * stage.channels * pixels
        return cost_of_maps(len(self.maps()) + 1, multiply_adds, kept, self.rows_per_sample)

    def _read_out(self, h: Tensor) -> Tensor:
        return h.mean((3, 4))

    def _stream(
        self, parameters: Tensors, x_TNI: Tensor, state: Tensors, moved: dict[str, Tensor], *, training: bool
    ) -> Iterator[Tensor]:
        num_trials = x_TNI.shape[0]

        def mapped(maps: Tensor, each: Normed) -> Tensor:
            maps = convolution(maps, parameters[f"C_{each.name}"], each.stride)
            return self._normalised(maps, each, parameters, state, moved, training=training)

        def by_trial(maps: Tensor) -> Tensor:
            return maps.view(len(maps), num_trials, -1, *maps.shape[2:]).transpose(0, 1)

        given, maps = iter(self.maps()), as_maps(x_TNI, self.image_shape)
        for stage in self.stages:
            is_last = stage is self.stages[-1]
            maps = mapped(maps, next(given)).relu()
            if is_last:
                yield by_trial(maps)
            for _ in range(stage.blocks):
                maps = (mapped(mapped(maps, next(given)).relu(), next(given)) + maps).relu()
                if is_last:
                    yield by_trial(maps)


def read_stages(text: str) -> tuple[Stage, ...]:
    """Return the stages of a text such as "64x16x16*2 128x8x8*3": channels x rows x columns, times blocks."""
    found = []
    for part in text.split():
        shape, _, blocks = part.partition("*")
        channels, rows, _ = map(int, shape.split("x"))
        found.append(Stage(channels, rows, int(blocks)))
    return tuple(found)


STAGES = {
    "fashion_mnist": "32x14x14*5 64x7x7*4",
    "cifar10": "64x16x16*2 128x8x8*3 256x4x4*4",
    "stl10": "64x48x48*5 128x24x24*5 256x12x12*5 512x6x6*5",
    "cifar100": "64x32x32*3 128x16x16*3 256x8x8*4 512x4x4*4",
}
"""Of P3's Table I, by data set."""
SAME_STAGES = {"mnist": "fashion_mnist", "kmnist": "fashion_mnist", "cifar10_batch1": "cifar10"}
"""Data sets whose images have the size of another's."""


def stages_of(given: str | None, dataset: str) -> tuple[Stage, ...]:
    """Return the stages that a trial asks for: those it gives, else Table I's of its data set.

    Raises:
        KeyError: it gives none, and Table I has none.
    """
    return read_stages(STAGES[SAME_STAGES.get(dataset, dataset)] if given is None else given)
