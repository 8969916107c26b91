"""Modules of all kinds, with the form of their samples, and why no step can be generated for some of them."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SHAPES = {"vectors": (64,), "tokens": (12, 8), "images": (1, 8, 8), "ids": (12,)}
"""Form of samples -> shape of one. Samples of ids have a label per token."""
CLASSES, VOCABULARY = 10, 20


@dataclass(frozen=True)
class Case:
    """A module, the samples that it reads, and the words of its refusal, if it is refused."""

    name: str
    make: Callable[[], nn.Module]
    form: str = "vectors"
    refusal: str = ""


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, *modules: nn.Module):
        super().__init__()
        self.branch = nn.Sequential(*modules)

    def forward(self, x):
        return x + self.branch(x)


class Pooled(nn.Module):
    """A module of tokens, whose outputs are averaged and classified."""

    def __init__(self, module: nn.Module, width: int = 8):
        super().__init__()
        self.module, self.head = module, nn.Linear(width, CLASSES)

    def forward(self, x):
        y = self.module(x)
        return self.head((y[0] if isinstance(y, tuple) else y).mean(1))


class TwoBranches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(64, 32), nn.Linear(64, 32), nn.Linear(64, CLASSES)

    def forward(self, x):
        return self.head(torch.cat([torch.relu(self.left(x)), torch.tanh(self.right(x))], 1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(64, 128), nn.Linear(64, CLASSES)

    def forward(self, x):
        value, gate = self.first(x).chunk(2, 1)
        return self.head(value * torch.sigmoid(gate))


class SwiGlu(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.gate, self.value = nn.Linear(width, 16, bias=False), nn.Linear(width, 16, bias=False)
        self.out = nn.Linear(16, width, bias=False)

    def forward(self, x):
        return self.out(F.silu(self.gate(x)) * self.value(x))


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class TokenMixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(12, 12)

    def forward(self, x):
        return x + F.gelu(self.mix(x.transpose(1, 2))).transpose(1, 2)


class CausalBlock(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        parts = self.project(self.norm(x)).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(attended.transpose(1, 2).reshape(n, length, width))


class GroupedQueries(nn.Module):
    """Attention of four heads with two heads of keys and values, under a mask, without torch's function."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(8, 16), nn.Linear(8, 8), nn.Linear(8, 8)
        self.out = nn.Linear(16, 8)
        self.register_buffer("mask", torch.ones(12, 12).tril().bool())

    def forward(self, x):
        query, key, value = (
            part.unflatten(2, (-1, 4)).transpose(1, 2) for part in (self.query(x), self.key(x), self.value(x))
        )
        key, value = (part.repeat_interleave(2, 1) for part in (key, value))
        scores = (query @ key.transpose(2, 3) / 2).masked_fill(~self.mask, float("-inf"))
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        angle = torch.arange(12.0)[:, None] / 100 ** (torch.arange(4) / 4)
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, 1))
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, 1))

    def forward(self, x):
        y = self.linear(x)
        left, right = y.chunk(2, -1)
        return y * self.cos + torch.cat([-right, left], -1) * self.sin


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 8)

    def forward(self, x):
        return torch.tanh(x + self.table(torch.arange(12)))


class ClassToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.block, self.head = nn.Parameter(torch.randn(1, 1, 8)), CausalBlock(), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.head(self.block(torch.cat([x, self.token.expand(len(x), -1, -1)], 1))[:, -1])


class LanguageModel(nn.Module):
    def __init__(self, is_tied: bool = False, width: int = 16):
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(torch.randn(12, width) * 0.1)
        self.block, self.norm = CausalBlock(width), nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.norm(self.block(self.embed(ids) + self.places)))


class NextIds(nn.Module):
    """A module that reads, for each token but the last, also the one behind it."""

    def __init__(self):
        super().__init__()
        self.embed, self.next = nn.Embedding(VOCABULARY, 8), nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, ids):
        return self.head(self.embed(ids) + F.pad(self.next(ids[:, 1:]), (0, 0, 0, 1)))


class Gain(nn.Module):
    def __init__(self, *shape: int):
        super().__init__()
        self.gain = nn.Parameter(torch.full(shape, 1.3))

    def forward(self, x):
        return x * self.gain


class Offset(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.tanh(x) + self.offset


class NormedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.gain = nn.Parameter(torch.randn(32, 64) * 0.1), nn.Parameter(torch.ones(32, 1))

    def forward(self, x):
        return x @ (self.gain * self.weight / self.weight.norm(dim=1, keepdim=True)).t()


class OwnRms(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int = 8):
        super().__init__()
        self.down, self.up = nn.Linear(channels, 4), nn.Linear(4, channels)

    def forward(self, x):
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))[:, :, None, None]


class WithItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bilinear = nn.Linear(64, 8), nn.Bilinear(8, 8, CLASSES)

    def forward(self, x):
        y = self.first(x)
        return self.bilinear(y, torch.tanh(y))


class LowRank(nn.Module):
    """A product of two parameters, and a parameter that reaches the output on two ways."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(64, 3) / 8), nn.Parameter(torch.randn(3, 10))

    def forward(self, x):
        return x @ (self.left @ self.right) + torch.tanh(x @ self.left) @ self.right


def dense(activation: nn.Module) -> Callable[[], nn.Module]:
    """Return a two-layer network with an activation, or a layer, between its maps."""
    return lambda: nn.Sequential(nn.Linear(64, 64), activation, nn.Linear(64, CLASSES))


def applied(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """Return a two-layer network with a function between its maps."""
    return dense(Call(function))


def tokens(module: Callable[[], nn.Module], width: int = 8) -> Callable[[], nn.Module]:
    """Return a classifier of averaged tokens."""
    return lambda: Pooled(module(), width)


def of_tokens(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """Return a classifier of the averaged tokens that a function returns."""
    return tokens(lambda: Call(function))


def maps(num_features: int, *make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return modules of maps, classified linearly."""
    return lambda: nn.Sequential(*[part() for part in make], nn.Flatten(), nn.Linear(num_features, CLASSES))


def conv(*arguments: int, **named: int) -> Callable[[], nn.Module]:
    """Return a maker of a convolution."""
    return lambda: nn.Conv2d(*arguments, **named)


def encoder(*, norm_first: bool, activation: str) -> Callable[[], nn.Module]:
    """Return a classifier with torch's transformer layer."""
    usual = {"dropout": 0.0, "batch_first": True}
    return tokens(lambda: nn.TransformerEncoderLayer(8, 2, 16, norm_first=norm_first, activation=activation, **usual))


def _shared_block() -> nn.Module:
    block = Residual(nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(nn.Linear(64, 32), block, block, nn.Linear(32, CLASSES))


def _deep() -> nn.Module:
    blocks = [Residual(nn.LayerNorm(32), nn.Linear(32, 32), nn.ReLU()) for _ in range(12)]
    return nn.Sequential(nn.Linear(64, 32), *blocks, nn.Linear(32, CLASSES))


def _widths(*widths: int, bias: bool = True, between: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    layers: list[nn.Module] = []
    for num_in, num_out in itertools.pairwise(widths):
        layers += [nn.Linear(num_in, num_out, bias=bias), between()]
    return nn.Sequential(*layers[:-1])


def _series() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 64)), nn.Conv1d(1, 8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(240, CLASSES)
    )


def _patches() -> nn.Module:
    embed = [nn.Conv2d(1, 8, 4, 4), nn.Flatten(2), Call(lambda x: x.transpose(1, 2))]
    return nn.Sequential(*embed, Residual(CausalBlock()), Call(lambda x: x.mean(1)), nn.Linear(8, CLASSES))


def _maps_residual() -> Callable[[], nn.Module]:
    def block() -> nn.Module:
        return Residual(conv(8, 8, 3, padding=1)(), nn.ReLU(), conv(8, 8, 3, padding=1)())

    return maps(32, conv(1, 8, 3, padding=1), block, nn.ReLU, lambda: nn.AdaptiveAvgPool2d(2))


def _standardised(x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)


MIXES = "depends on the other samples of its batch"
ACTIVATIONS = [
    *(nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.ELU(), nn.LeakyReLU()),
    *(nn.Softplus(), nn.Hardswish(), nn.Hardsigmoid(), nn.Hardtanh(), nn.ReLU6(), nn.Mish(), nn.SELU()),
    *(nn.CELU(), nn.LogSigmoid(), nn.Softsign(), nn.Tanhshrink(), nn.Threshold(0.1, 0.2), nn.Identity()),
    *(nn.Softmax(1), nn.LogSoftmax(1), nn.Softmin(1), nn.Hardtanh(-0.3, 0.4)),
]


def _in_short_numbers(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ torch.eye(x.shape[1])).float()


def _halves_its_gradient(x: Tensor) -> Tensor:
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient / 2)
    return y


SURVEY = [
    *[Case(str(activation), dense(activation)) for activation in ACTIVATIONS],
    # layers with parameters
    Case("PReLU", lambda: dense(nn.PReLU())()),
    Case("PReLU per column", lambda: dense(nn.PReLU(64))()),
    Case("LayerNorm", lambda: dense(nn.LayerNorm(64))()),
    Case("LayerNorm without parameters", lambda: dense(nn.LayerNorm(64, elementwise_affine=False))()),
    Case("RMSNorm", lambda: dense(nn.RMSNorm(64))()),
    Case("GroupNorm", lambda: dense(nn.GroupNorm(4, 64))()),
    Case("own RMSNorm", lambda: dense(OwnRms())()),
    Case("gain: one number", lambda: dense(Gain())()),
    Case("gain: a vector of one", lambda: dense(Gain(1))()),
    Case("gain: a vector", lambda: dense(Gain(64))()),
    Case("normed weight", lambda: nn.Sequential(NormedWeight(), nn.ReLU(), nn.Linear(32, CLASSES))),
    Case(
        "torch's weight_norm",
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(64, 32)), nn.ReLU(), nn.Linear(32, CLASSES)
        ),
    ),
    Case("low rank", LowRank),
    # functions
    Case("GLU", lambda: nn.Sequential(nn.Linear(64, 64), nn.GLU(), nn.Linear(32, CLASSES))),
    Case("square", applied(lambda x: x**2)),
    Case("cube", applied(lambda x: x**3)),
    Case("reciprocal", applied(lambda x: 1 / (x * x + 1))),
    Case("sin", applied(torch.sin)),
    Case("cos", applied(torch.cos)),
    Case("atan", applied(torch.atan)),
    Case("log1p", applied(lambda x: torch.log1p(x.abs()))),
    Case("sqrt", applied(lambda x: torch.sqrt(x * x + 1))),
    Case("exp", applied(lambda x: torch.exp(-x * x))),
    Case("expm1", applied(lambda x: torch.expm1(-x * x))),
    Case("erf", applied(torch.erf)),
    Case("abs", applied(torch.abs)),
    Case("clamp", applied(lambda x: x.clamp(-0.5, 0.5))),
    Case("clamp from below", applied(lambda x: x.clamp(min=0.1))),
    Case("maximum", applied(lambda x: torch.maximum(x, 0.3 * x))),
    Case("minimum", applied(lambda x: torch.minimum(x, 0.3 * x))),
    Case("where", applied(lambda x: torch.where(x > 0, x, x * x))),
    Case("masked_fill", applied(lambda x: x.masked_fill(x > 1, 0.0))),
    Case("normalize", applied(lambda x: F.normalize(x, dim=1))),
    Case("logsumexp", applied(lambda x: x - torch.logsumexp(x, 1, keepdim=True))),
    Case("row sum", applied(lambda x: x * x.sum(1, keepdim=True))),
    # shapes of networks
    Case("residual", lambda: nn.Sequential(nn.Linear(64, 32), Residual(_widths(32, 32, 32)), nn.Linear(32, CLASSES))),
    Case("shared block", _shared_block),
    Case("no bias", lambda: _widths(64, 33, CLASSES, bias=False, between=nn.ReLU)),
    Case("width 1", lambda: _widths(64, 1, CLASSES)),
    Case("width 3", lambda: _widths(64, 3, CLASSES)),
    Case("width 600", lambda: _widths(64, 600, CLASSES, between=nn.ReLU)),
    Case("linear network", lambda: _widths(64, 32, 32, CLASSES, bias=False, between=nn.Identity)),
    Case("one map", lambda: nn.Linear(64, CLASSES)),
    Case("12 blocks", _deep),
    Case("two branches", TwoBranches),
    Case("gated", Gated),
    Case("pad", lambda: nn.Sequential(Call(lambda x: F.pad(x, (2, 3))), nn.Linear(69, CLASSES))),
    Case(
        "pad of features",
        lambda: nn.Sequential(nn.Linear(64, 16), Call(lambda x: F.pad(x.tanh(), (2, -3))), nn.Linear(15, CLASSES)),
    ),
    Case(
        "stack",
        lambda: nn.Sequential(
            nn.Linear(64, 64), Call(lambda x: torch.stack([x, x.tanh()], 1).flatten(1)), nn.Linear(128, CLASSES)
        ),
    ),
    Case(
        "einsum",
        lambda: nn.Sequential(
            nn.Linear(64, 32),
            Call(lambda x: torch.einsum("bi,bj->bij", x, x).flatten(1)),
            nn.Linear(1024, CLASSES),
        ),
    ),
    Case(
        "head of row sums",  # the gradient of the bias adds up rows of one number each
        lambda: nn.Sequential(
            nn.Linear(64, 15), Gain(15), Offset(15), Call(lambda x: x.sum(1, keepdim=True) * 0.1), nn.Linear(1, CLASSES)
        ),
    ),
    # tokens
    Case("mean over tokens", of_tokens(lambda x: x), "tokens"),
    Case("sum over tokens", lambda: nn.Sequential(Call(lambda x: x.tanh().sum(1)), nn.Linear(8, CLASSES)), "tokens"),
    Case(
        "sum over mapped tokens",
        lambda: nn.Sequential(nn.Linear(8, 16), Call(lambda x: x.sum(1)), nn.Linear(16, CLASSES)),
        "tokens",
    ),
    Case("slices", of_tokens(lambda x: x[:, 1:5] * x[:, 3:7]), "tokens"),
    Case(
        "mapped slices", tokens(lambda: nn.Sequential(nn.Linear(8, 8), Call(lambda x: x[:, 1:5] * x[:, 3:7]))), "tokens"
    ),
    Case("class token", ClassToken, "tokens"),
    Case("unbind", of_tokens(lambda x: torch.stack([token * 2 for token in x.unbind(1)], 1)), "tokens"),
    Case("roll", tokens(lambda: nn.Sequential(nn.Linear(8, 8), Call(lambda x: x + x.roll(1, 1)))), "tokens"),
    Case(
        "max over tokens", tokens(lambda: nn.Sequential(nn.Linear(8, 8), Call(lambda x: x + x.amax(1, True)))), "tokens"
    ),
    Case(
        "softmax over tokens",
        tokens(lambda: nn.Sequential(nn.Linear(8, 8), Call(lambda x: x * x.softmax(1)))),
        "tokens",
    ),
    Case("SwiGLU", tokens(SwiGlu), "tokens"),
    Case("token mixing", tokens(TokenMixing), "tokens"),
    Case("MultiheadAttention", tokens(SelfAttention), "tokens"),
    Case("post-LN encoder layer", encoder(norm_first=False, activation="relu"), "tokens"),
    Case("pre-LN encoder layer", encoder(norm_first=True, activation="gelu"), "tokens"),
    Case("causal block", tokens(CausalBlock), "tokens"),
    Case("two causal blocks", tokens(lambda: nn.Sequential(CausalBlock(), CausalBlock())), "tokens"),
    Case("grouped queries", tokens(GroupedQueries), "tokens"),
    Case("rotary positions", tokens(Rotary), "tokens"),
    Case("learned positions", tokens(Positions), "tokens"),
    Case("RNN", tokens(lambda: nn.RNN(8, 8, batch_first=True)), "tokens"),
    Case("GRU", tokens(lambda: nn.GRU(8, 8, batch_first=True)), "tokens"),
    Case("language model", LanguageModel, "ids"),
    Case("next ids", NextIds, "ids"),
    Case("tied language model", lambda: LanguageModel(is_tied=True), "ids"),
    # maps
    Case("Conv2d", maps(512, conv(1, 8, 3, padding=1), nn.ReLU), "images"),
    Case(
        "two Conv2d",
        maps(16, conv(1, 8, 3, padding=1), nn.ReLU, conv(8, 16, 3), nn.ReLU, lambda: nn.AdaptiveAvgPool2d(1)),
        "images",
    ),
    Case("strided", maps(64, conv(1, 8, 3, 2, 1), nn.ReLU, conv(8, 16, 3, 2, 1), nn.ReLU), "images"),
    Case("dilated", maps(128, conv(1, 8, 3, dilation=2), nn.ReLU), "images"),
    Case("depthwise", maps(512, conv(1, 8, 1), conv(8, 8, 3, padding=1, groups=8), nn.GELU), "images"),
    Case("grouped", maps(512, conv(1, 8, 1), conv(8, 8, 3, padding=1, groups=2), nn.GELU), "images"),
    Case(
        "MaxPool2d",
        maps(32, conv(1, 8, 3, padding=1), lambda: nn.MaxPool2d(2), conv(8, 8, 3, padding=1), lambda: nn.MaxPool2d(2)),
        "images",
    ),
    Case("GroupNorm of maps", maps(512, conv(1, 8, 3, padding=1), lambda: nn.GroupNorm(2, 8), nn.ReLU), "images"),
    Case("AvgPool2d", maps(128, conv(1, 8, 3, padding=1), nn.Tanh, lambda: nn.AvgPool2d(2)), "images"),
    Case("residual of maps", _maps_residual(), "images"),
    Case("squeeze and excite", maps(512, conv(1, 8, 3, padding=1), SqueezeExcite), "images"),
    Case("PixelShuffle", maps(256, conv(1, 4, 3, padding=1), lambda: nn.PixelShuffle(2)), "images"),
    Case("Conv1d", _series),
    Case("patches", _patches, "images"),
    Case(
        "LayerNorm of channels",
        maps(
            32,
            conv(1, 8, 4, 4),
            lambda: Call(lambda x: x.permute(0, 2, 3, 1)),
            lambda: nn.LayerNorm(8),
            lambda: Call(lambda x: x.permute(0, 3, 1, 2)),
        ),
        "images",
    ),
    Case("Softshrink", lambda: dense(nn.Softshrink())()),
    Case("Hardshrink", lambda: dense(nn.Hardshrink())()),
    Case("std", applied(_standardised)),
    Case("max with indices", of_tokens(lambda x: x + x.max(1)[0][:, None]), "tokens"),
    Case("cumsum", of_tokens(lambda x: x.cumsum(1)), "tokens"),
    Case("flip", of_tokens(lambda x: x * x.flip(1)), "tokens"),
    Case("LSTM", tokens(lambda: nn.LSTM(8, 8, batch_first=True)), "tokens"),
    Case("InstanceNorm2d", maps(512, conv(1, 8, 3, padding=1), lambda: nn.InstanceNorm2d(8)), "images"),
    Case("Upsample", maps(256, lambda: nn.Upsample(scale_factor=2)), "images"),
    Case("overlapping MaxPool2d", maps(128, conv(1, 8, 3, padding=1), lambda: nn.MaxPool2d(3, 2, 1)), "images"),
    Case("gradient of an energy", applied(lambda x: x - torch.func.grad(lambda h: F.softplus(h).sum())(x))),
    # refused: samples mix
    Case("BatchNorm1d", lambda: dense(nn.BatchNorm1d(64))(), refusal=MIXES),
    Case("BatchNorm2d", maps(512, conv(1, 8, 3, padding=1), lambda: nn.BatchNorm2d(8)), "images", MIXES),
    Case("mean over the batch", applied(lambda x: x - x.mean(0)), refusal=MIXES),
    Case("roll over the batch", applied(lambda x: x + x.roll(1, 0)), refusal=MIXES),
    Case("flip of the batch", applied(lambda x: x + x.flip(0)), refusal=MIXES),
    Case("attention over the batch", applied(lambda x: (x @ x.t()).softmax(1) @ x), refusal=MIXES),
    Case(
        "Dropout", lambda: dense(nn.Dropout(0.1))(), refusal=MIXES
    ),  # another mask for each row: it draws random numbers
    # refused: kernels would compute something else
    Case("autocast", applied(_in_short_numbers), refusal="computes in bfloat16"),
    Case("hook on a tensor", applied(_halves_its_gradient), refusal="hooks on tensors"),
    # refused: an operation has no kernel
    Case("Bilinear", WithItself, refusal="operation _trilinear"),
    Case("cumprod", of_tokens(lambda x: x.cumprod(1)), "tokens", "operation cumprod"),
    Case("ConvTranspose2d", maps(1024, lambda: nn.ConvTranspose2d(1, 4, 2, 2)), "images", "a transposed convolution"),
]
