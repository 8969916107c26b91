"""Random modules: some operations on maps of tokens [N, T, C] of odd sizes, whose results are used again."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 65)
LENGTHS = (1, 2, 3, 4, 5, 7)
MAX_NUMBERS = 600
"""Numbers of a sample's tensors at most, so that a graph takes little time."""
POINTWISE = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "square": lambda x: x * x / (1 + x * x),
    "sqrt": lambda x: (x * x + 0.5).sqrt(),
    "exp": lambda x: (-x.abs()).exp(),
    "log": lambda x: (x * x + 1).log(),
    "sin": torch.sin,
    "where": lambda x: torch.where(x > 0.1, x, -0.5 * x),
    "clamp": lambda x: x.clamp(-1, 0.7),
    "scaled": lambda x: 2 - 0.7 * x,
}
KINDS = (
    *("linear", "linear", "linear", "tied", "point", "point", "point", "norm", "group", "softmax", "reduce"),
    *("broadcast", "add", "multiply", "cat", "slice", "step", "transpose", "flatten", "unflatten"),
    *("select", "product", "attention", "parameter", "row_parameter", "pad", "roll", "stack", "maximum"),
)
AXES = ((1,), (2,), (1, 2))


class RandomModule(nn.Module):
    """A module drawn from a seed. `text` describes it."""

    def __init__(self, seed: int):
        super().__init__()
        rng = random.Random(seed)
        self.length, self.width = rng.choice(LENGTHS), rng.choice(WIDTHS)
        self.weights = nn.ParameterList()
        self.steps: list[tuple] = []
        shapes = [(self.length, self.width)]
        for _ in range(rng.randint(2, 9)):
            self._draw(rng, shapes)
        kind = rng.choice(["flat", "mean", "last", "first rows"])
        length, width = shapes[-1]
        if kind == "first rows":
            self.steps.append(("slice", len(shapes) - 1, 1, 0, (length + 1) // 2))
            shapes.append(((length + 1) // 2, width))
            length, kind = (length + 1) // 2, "flat"
        self.kind = kind
        self.head = nn.Linear(length * width if kind == "flat" else width, rng.choice([1, 2, 3, 10, 16, 17]))
        self.head.bias = self.head.bias if rng.random() < 0.7 else None
        self.text = f"{seed}: {self.length} x {self.width}, {self.steps}, {kind}, {self.head}"

    def _draw(self, rng: random.Random, shapes: list[tuple[int, int]]) -> None:
        at = rng.choice([len(shapes) - 1, len(shapes) - 1, rng.randrange(len(shapes))])
        length, width = shapes[at]
        same = [index for index, shape in enumerate(shapes) if shape == (length, width)]
        longer = [index for index, shape in enumerate(shapes) if shape[1] == width]
        kind = rng.choice(KINDS)
        step: tuple | None = None
        shape = (length, width)
        if kind == "linear":
            shape = (length, rng.choice([w for w in WIDTHS if w * length <= MAX_NUMBERS]))
            step = (kind, at, self._weight(width, shape[1]), self._weight(1, shape[1]) if rng.random() < 0.7 else None)
        elif kind == "tied":  # a weight and its transpose
            other = rng.choice(WIDTHS)
            step = (kind, at, self._weight(width, other))
        elif kind == "point":
            step = (kind, at, rng.choice(list(POINTWISE)))
        elif kind == "norm":
            step = (kind, at, rng.choice(["layer", "rms", "both axes", "none"]), self._weight(1, width))
        elif kind == "group" and width % 2 == 0 and length > 1:
            step = (kind, at, rng.choice([g for g in (1, 2, 4) if width % g == 0]))
        elif kind == "softmax":
            step = (kind, at, rng.choice([1, 2]))
        elif kind == "reduce":
            step = (kind, at, rng.choice(AXES), rng.choice(["sum", "mean", "max"]))
            shape = tuple(1 if axis in step[2] else size for axis, size in enumerate(shape, start=1))
        elif kind == "broadcast":
            others = [i for i, (a, b) in enumerate(shapes) if (a in (1, length)) and (b in (1, width))]
            step = (kind, at, rng.choice(others), rng.choice(["add", "multiply", "subtract", "divide"]))
        elif kind in ("add", "multiply", "maximum"):
            step = (kind, at, rng.choice(same))
        elif kind in ("cat", "stack"):
            other = rng.choice(longer if kind == "cat" else same)
            shape = (length + shapes[other][0], width) if kind == "cat" else (length, 2 * width)
            step = (kind, at, other)
        elif kind in ("slice", "step", "select"):
            axis = rng.choice([1, 2])
            size = shape[axis - 1]
            begin = rng.randrange(size)
            end = begin + 1 if kind == "select" else rng.randint(begin + 1, size)
            step = ("slice", at, axis, begin, end)
            shape = (end - begin, width) if axis == 1 else (length, end - begin)
        elif kind == "transpose":
            step, shape = (kind, at), (width, length)
        elif kind == "flatten":
            step, shape = (kind, at), (1, length * width)
        elif kind == "unflatten":
            factors = [f for f in (2, 3, 4, 5, 8) if length * width % f == 0]
            if factors:
                factor = rng.choice(factors)
                step, shape = (kind, at, factor), (factor, length * width // factor)
        elif kind == "product":  # of tokens with themselves or with others
            other = rng.choice(longer)
            step, shape = (kind, at, other), (length, shapes[other][0])
        elif kind == "attention":
            other = rng.choice(longer)
            step = (kind, at, other, rng.random() < 0.5 and other == at)
        elif kind in ("parameter", "row_parameter"):
            size = (length, width) if kind == "parameter" else rng.choice([(1, 1), (length, 1), (1, width)])
            step = ("parameter", at, self._weight(*size), rng.choice(["add", "multiply"]))
        elif kind == "pad":
            axis, before, after = rng.choice([1, 2]), rng.randint(0, 2), rng.randint(1, 2)
            step = (kind, at, axis, before, after)
            added = before + after
            shape = (length + added, width) if axis == 1 else (length, width + added)
        elif kind == "roll":
            step = (kind, at, rng.choice([1, 2]), rng.randint(1, 3))
        if step is not None and shape[0] * shape[1] <= MAX_NUMBERS:
            self.steps.append(step)
            shapes.append(shape)

    def _weight(self, rows: int, columns: int) -> int:
        self.weights.append(nn.Parameter(torch.randn(rows, columns) / rows**0.5))
        return len(self.weights) - 1

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for kind, at, *rest in self.steps:
            values.append(self._value(kind, values[at], values, *rest))
        last = values[-1]
        return self.head(
            last.flatten(1) if self.kind == "flat" else last.mean(1) if self.kind == "mean" else last[:, -1]
        )

    def _value(self, kind: str, x: Tensor, values: list[Tensor], *rest) -> Tensor:
        if kind == "linear":
            y = x @ self.weights[rest[0]]
            return y if rest[1] is None else y + self.weights[rest[1]].squeeze(0)
        if kind == "tied":
            return x + (x @ self.weights[rest[0]]) @ self.weights[rest[0]].t()
        if kind == "point":
            return POINTWISE[rest[0]](x)
        if kind == "norm":
            weight = self.weights[rest[1]]
            if rest[0] == "rms":
                return x * (x.square().mean(-1, keepdim=True) + 0.1).rsqrt() * weight
            if rest[0] == "both axes":
                return F.layer_norm(x, x.shape[1:], eps=0.1)
            return F.layer_norm(x, x.shape[2:], weight.squeeze(0) if rest[0] == "layer" else None, eps=0.1)
        if kind == "group":
            return F.group_norm(x.transpose(1, 2), rest[0], eps=0.1).transpose(1, 2)
        if kind == "softmax":
            return x.softmax(rest[0]) + 0.1 * x.log_softmax(rest[0])
        if kind == "reduce":
            axes, how = rest
            return x.amax(axes, True) if how == "max" else x.sum(axes, True) * (1 if how == "mean" else 0.1)
        if kind == "broadcast":
            other, how = values[rest[0]], rest[1]
            if how == "divide":
                return x / (1 + other * other)
            return x + other if how == "add" else x * torch.tanh(other) if how == "multiply" else other - x
        if kind in ("add", "multiply", "maximum"):
            other = values[rest[0]]
            return (
                x + other
                if kind == "add"
                else x * other.tanh()
                if kind == "multiply"
                else torch.maximum(x, 0.3 * other)
            )
        if kind == "cat":
            return torch.cat([x, values[rest[0]]], 1)
        if kind == "stack":
            return torch.stack([x, values[rest[0]]], 3).flatten(2)
        if kind == "slice":
            axis, begin, end = rest
            return x.narrow(axis, begin, end - begin)
        if kind == "transpose":
            return x.transpose(1, 2)
        if kind == "flatten":
            return x.flatten(1).unsqueeze(1)
        if kind == "unflatten":
            return x.flatten(1).unflatten(1, (rest[0], -1))
        if kind == "product":
            return x @ values[rest[0]].transpose(1, 2) / x.shape[2] ** 0.5
        if kind == "attention":
            other = values[rest[0]]
            return F.scaled_dot_product_attention(x, other, other.tanh(), is_causal=rest[1])
        if kind == "parameter":
            weight = self.weights[rest[0]]
            return x + weight if rest[1] == "add" else x * weight
        if kind == "pad":
            axis, before, after = rest
            return F.pad(x, (before, after) if axis == 2 else (0, 0, before, after))
        if kind == "roll":
            return x.roll(rest[1], rest[0])
        raise AssertionError(kind)
