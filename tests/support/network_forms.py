"""Networks of many forms, as people write them, each with the layout of its layers as its author would document it.

In a layout, N is the sample axis, C the channel axis, and each other letter an axis of positions. Nothing here refers to
depthrate, so a copy of this file serves as a sweep's `m.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

K = 3
"""Classes."""


class ConvNeXtBlock(nn.Module):
    """Channels first outside and last inside: [N, C, H, W] -> [N, H, W, C] -> [N, C, H, W]."""

    def __init__(self, width):
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.grow, self.shrink = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        h = self.shrink(F.gelu(self.grow(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))))
        return x + (self.scale * h).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, width=5, depth=2):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.blocks = nn.ModuleList([ConvNeXtBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, K)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class ConvGru(nn.Module):
    """A convolution over time, then a GRU with batch_first."""

    def __init__(self, width=5):
        super().__init__()
        self.conv, self.norm, self.pool = nn.Conv1d(2, width, 3, padding=1), nn.BatchNorm1d(width), nn.MaxPool1d(2)
        self.gru, self.head = nn.GRU(width, width, batch_first=True), nn.Linear(width, K)

    def forward(self, x):
        outputs, _ = self.gru(self.pool(F.relu_(self.norm(self.conv(x)))).transpose(1, 2))
        return self.head(outputs[:, -1])


class Crnn(nn.Module):
    """Text recognition: the columns of the maps become the steps of a GRU with torch's default, time first."""

    def __init__(self, width=4, rows=3):
        super().__init__()
        self.conv, self.gru = nn.Conv2d(1, width, 3, padding=1), nn.GRU(width * rows, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, K)

    def forward(self, x):
        columns = self.conv(x).permute(3, 0, 1, 2).flatten(2)  # [columns, N, C x rows]
        return self.head(self.norm(self.gru(columns)[0]).mean(0))


class Up(nn.Module):
    """Grow the maps, and put those of the way down beside them."""

    def __init__(self, width):
        super().__init__()
        self.grow = nn.ConvTranspose2d(2 * width, width, 2, stride=2)

    def forward(self, x, skip):
        return torch.cat([self.grow(x), skip], dim=1)


class UNet(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.down, self.pool = nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.ReLU(inplace=True)), nn.MaxPool2d(2)
        self.bottom = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.up, self.fuse = Up(width), nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Linear(width, K)

    def forward(self, x):
        skip = self.down(x)
        return self.head(self.fuse(self.up(self.bottom(self.pool(skip)), skip)).amax((2, 3)))


class MixerBlock(nn.Module):
    """Channels, then tokens: its last map runs over the tokens of [N, C, T], and the block returns [N, T, C]."""

    def __init__(self, tokens, width, residual):
        super().__init__()
        self.norm, self.channels, self.tokens = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(tokens, tokens)
        self.residual = residual

    def forward(self, x):
        x = x + F.gelu(self.channels(self.norm(x)))
        mixed = F.gelu(self.tokens(x.transpose(1, 2))).transpose(1, 2)
        return x + mixed if self.residual else mixed


class Mixer(nn.Module):
    def __init__(self, tokens=7, width=5, residual=True):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.blocks = nn.Sequential(*[MixerBlock(tokens, width, residual) for _ in range(2)])
        self.head = nn.Linear(width, K)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)).mean(1))


class EncoderDecoder(nn.Module):
    """torch's Transformer with its default, time first: learned queries read the encoded sequence."""

    def __init__(self, width=8, queries=3):
        super().__init__()
        self.embed, self.queries = nn.Linear(4, width), nn.Parameter(torch.randn(queries, 1, width))
        self.transformer = nn.Transformer(width, 2, 2, 2, 12, dropout=0.0)
        self.head = nn.Linear(width, K)

    def forward(self, x):
        h = self.transformer(self.embed(x.transpose(0, 1)), self.queries.expand(-1, len(x), -1))
        return self.head(h.mean(0))


class Gate(nn.Module):
    """Squeeze and excitation: a gate [N, C] from linear maps multiplies the maps [N, C, H, W]."""

    def __init__(self, width):
        super().__init__()
        self.maps = nn.Sequential(nn.Linear(width, 2), nn.SiLU(), nn.Linear(2, width))

    def forward(self, x):
        return x * torch.sigmoid(self.maps(x.mean((2, 3))))[:, :, None, None]


class SqueezeExcite(nn.Module):
    def __init__(self, width=5, depth=2):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), Gate(width))
                for _ in range(depth)
            ]
        )
        self.head = nn.Linear(width, K)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class VitBlock(nn.Module):
    """Attention with torch's default, time first, inside a block [N, T, C]."""

    def __init__(self, width):
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 2)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))

    def forward(self, x):
        h = self.norm(x).transpose(0, 1)
        x = x + self.attend(h, h, h)[0].transpose(0, 1)
        return x + self.mlp(x)


class Vit(nn.Module):
    def __init__(self, patches=9, width=6, depth=2):
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, width, 2, stride=2), nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, patches + 1, width))
        self.blocks = nn.ModuleList([VitBlock(width) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, K)

    def forward(self, x):
        h = self.embed(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.places
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h)[:, 0])


class DenseLayer(nn.Module):
    def __init__(self, width, growth):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(width), nn.Conv2d(width, growth, 3, padding=1)

    def forward(self, x):
        return torch.cat([x, self.conv(torch.relu(self.norm(x)))], 1)


class DenseNet(nn.Module):
    def __init__(self, growth=2, depth=2):
        super().__init__()
        self.blocks = nn.Sequential(*[DenseLayer(2 + i * growth, growth) for i in range(depth)])
        self.transition = nn.Sequential(nn.Conv2d(2 + depth * growth, 4, 1), nn.AvgPool2d(2))
        self.head = nn.Linear(4, K)

    def forward(self, x):
        return self.head(self.transition(self.blocks(x)).mean((2, 3)))


class GraphLayer(nn.Module):
    """Graph convolution on fixed edges: nodes [N, V, C], a mean over neighbours after a linear map."""

    def __init__(self, nodes, num_in, num_out, gathers):
        super().__init__()
        self.linear, self.gathers = nn.Linear(num_in, num_out), gathers
        ring = (torch.arange(nodes)[:, None] + torch.tensor([-1, 0, 1])) % nodes
        self.register_buffer("neighbours", ring)
        self.register_buffer("adjacency", F.one_hot(ring, nodes).float().mean(1))

    def forward(self, x):
        h = self.linear(x)
        return torch.relu(h[:, self.neighbours].mean(2) if self.gathers else self.adjacency @ h)


class Graph(nn.Module):
    def __init__(self, nodes=7, width=5):
        super().__init__()
        self.layers = nn.ModuleList([GraphLayer(nodes, 4, width, False), GraphLayer(nodes, width, width, True)])
        self.head = nn.Linear(width, K)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.sum(1))


class Nodes(nn.Module):
    """The nodes of one graph are the samples: no other number of them fits."""

    def __init__(self, nodes=24, width=5):
        super().__init__()
        self.layer, self.head = GraphLayer(nodes, 4, width, False), nn.Linear(width, K)

    def forward(self, x):
        return self.head(self.layer(x))


class NormedMaps(nn.Module):
    """One LayerNorm over channels, rows and columns together: [N, C, H, W]."""

    def __init__(self, width=4, pixels=5):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, width, 1), nn.LayerNorm([width, pixels, pixels])
        self.head = nn.Linear(width, K)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).amax((2, 3)))


class BinsNormed(nn.Module):
    """Speech recognition: maps [N, C, bins, steps] are normalised over the bins, as in residual networks before a GRU."""

    def __init__(self, width=5, bins=7):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, width, 3, padding=1), AlongBins(bins)
        self.gru, self.head = nn.GRU(width * bins, 5, batch_first=True), nn.Linear(5, K)

    def forward(self, x):
        return self.head(self.gru(self.norm(self.conv(x)).flatten(1, 2).transpose(1, 2))[0][:, -1])


class AlongBins(nn.Module):
    def __init__(self, bins):
        super().__init__()
        self.norm = nn.LayerNorm(bins)

    def forward(self, x):
        return torch.relu(self.norm(x.transpose(2, 3)).transpose(2, 3))


class CausalBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv, self.pad = nn.Conv1d(width, width, 3, padding=2 * dilation, dilation=dilation), 2 * dilation

    def forward(self, x):
        return x + torch.relu(self.conv(x)[:, :, : -self.pad])


class Tcn(nn.Module):
    """Dilated causal convolutions over [N, C, T], classified at the last step."""

    def __init__(self, width=4):
        super().__init__()
        self.embed, self.blocks = nn.Conv1d(2, width, 1), nn.ModuleList([CausalBlock(width, 2**i) for i in range(2)])
        self.head = nn.Linear(width, K)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x[..., -1])


class Bidirectional(nn.Module):
    """Two LSTMs, [N, T, C] with batch_first, else [T, N, C], and a wrapper that returns the outputs only."""

    def __init__(self, batch_first=False, width=3):
        super().__init__()
        self.first = nn.LSTM(4, width, bidirectional=True, batch_first=batch_first)
        self.second = OutputsOnly(nn.LSTM(2 * width, width, bidirectional=True, batch_first=batch_first))
        self.batch_first, self.head = batch_first, nn.Linear(2 * width, K)

    def forward(self, x):
        h = self.second(self.first(x if self.batch_first else x.transpose(0, 1))[0])
        return self.head(h[:, -1] if self.batch_first else h[-1])


class OutputsOnly(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x):
        return torch.tanh(self.rnn(x)[0])


class CellByCell(nn.Module):
    """An LSTM cell that is called step by step: one layer [N, C] per call, the first of a pair."""

    def __init__(self, width=5):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(4, width), nn.Linear(width, K)

    def forward(self, x):
        state = None
        for x_step in x.unbind(1):
            state = self.cell(x_step, state)
        return self.head(state[0])


class Volume(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.conv = nn.Conv3d(1, width, 3, padding=1)
        self.norm = nn.Sequential(nn.InstanceNorm3d(width), nn.ReLU())  # before the ReLU, each average is 0
        self.pool, self.second, self.head = nn.MaxPool3d(2), nn.Conv3d(width, width, 1), nn.Linear(width, K)

    def forward(self, x):
        return self.head(self.second(self.pool(self.norm(self.conv(x)))).amax((2, 3, 4)))


class TimeFirstAttention(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.embed, self.attend = nn.Linear(4, width), nn.MultiheadAttention(width, 3)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, K)

    def forward(self, x):
        h = self.embed(x.transpose(0, 1))
        return self.head(self.norm(h + self.attend(h, h, h, need_weights=True)[0]).amax(0))


class Separable(nn.Module):
    """Depthwise, then pointwise, with group and instance normalisation, and an average whose axes of length 1 remain."""

    def __init__(self, width=6):
        super().__init__()
        self.depthwise, self.pointwise = nn.Conv2d(3, 6, 3, padding=1, groups=3), nn.Conv2d(6, width, 1)
        self.instance, self.group = nn.Sequential(nn.InstanceNorm2d(width), nn.ReLU()), nn.GroupNorm(2, width)
        self.average, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(width, K)

    def forward(self, x):
        h = self.instance(self.pointwise(self.depthwise(x)))
        return self.head(self.average(self.group(h)).flatten(1))


class Perceiver(nn.Module):
    """Learned latents [M, C] read the tokens, in [N, M, C] and then in [M, N, C]."""

    def __init__(self, latents=3, width=6):
        super().__init__()
        self.latents, self.embed = nn.Parameter(torch.randn(latents, width)), nn.Linear(4, width)
        self.read = nn.MultiheadAttention(width, 2, batch_first=True)
        self.think = nn.TransformerEncoderLayer(width, 2, 12, dropout=0.0)
        self.head = nn.Linear(width, K)

    def forward(self, x):
        tokens = self.embed(x)
        latents, _ = self.read(self.latents.expand(len(x), -1, -1), tokens, tokens)
        return self.head(self.think(latents.transpose(0, 1)).mean(0))


class Fourier(nn.Module):
    """Mixing without parameters, over tokens and channels."""

    def forward(self, x):
        return torch.fft.fft2(x).real


class FNet(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        self.embed, self.mix, self.norm = nn.Linear(4, width), Fourier(), nn.LayerNorm(width)
        self.mlp, self.head = nn.Sequential(nn.Linear(width, width), nn.GELU()), nn.Linear(width, K)

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.mlp(self.norm(x + self.mix(x))).mean(1))


class Grouped(nn.Module):
    """One map per group: [N, G, C]."""

    def __init__(self, groups, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, width, width) / width**0.5)

    def forward(self, x):
        return torch.tanh(torch.einsum("ngc,gcd->ngd", x, self.weight))


class HyperMlp(nn.Module):
    def __init__(self, groups=3, width=5):
        super().__init__()
        self.shape, self.embed = (groups, width), nn.Linear(4, groups * width)
        self.grouped, self.shared = Grouped(groups, width), nn.Linear(width, width)
        self.head = nn.Linear(groups * width, K)

    def forward(self, x):
        return self.head(self.shared(self.grouped(self.embed(x).unflatten(1, self.shape))).flatten(1))


class ConvFeedForward(nn.Module):
    """Position-wise maps written as convolutions, and a batch norm over channels: [N, T, C] outside."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(width, width, 3, padding=1), nn.BatchNorm1d(width)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x.transpose(1, 2)))).transpose(1, 2)


class Speech(nn.Module):
    """Token ids, embedded, through position-wise convolutions."""

    def __init__(self, width=5, depth=2):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(9, width), nn.ModuleList([ConvFeedForward(width) for _ in range(depth)])
        self.head = nn.Linear(width, K)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Windows(nn.Module):
    """Swin: channels last, attention in windows that are put beside the samples, [N x windows, T, C]."""

    def __init__(self, width=4):
        super().__init__()
        self.embed, self.norm = nn.Conv2d(3, width, 1), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp, self.head = nn.Linear(width, width), nn.Linear(width, K)

    def forward(self, x):
        h = self.norm(self.embed(x).permute(0, 2, 3, 1))
        n, rows, columns, width = h.shape
        windows = h.view(n, rows // 2, 2, columns // 2, 2, width).transpose(2, 3).reshape(-1, 4, width)
        windows = self.attend(windows, windows, windows)[0].view(n, rows // 2, columns // 2, 2, 2, width)
        h = h + windows.transpose(2, 3).reshape(h.shape)
        return self.head(torch.relu(self.mlp(h)).mean((1, 2)))


class Frames(nn.Module):
    """Video: frames of all samples in one batch, time outside, [T x N, C, H, W], then an LSTM with time first."""

    def __init__(self, width=4):
        super().__init__()
        self.conv, self.rnn, self.head = nn.Conv2d(1, width, 3), nn.LSTM(width, width), nn.Linear(width, K)

    def forward(self, x):
        frames = x.transpose(0, 1)
        maps = torch.relu(self.conv(frames.flatten(0, 1).unsqueeze(1)))
        return self.head(self.rnn(maps.mean((2, 3)).unflatten(0, frames.shape[:2]))[0][-1])


class Columns(nn.Module):
    """Samples as columns, as theory writes them: a layer returns W X [C, N]."""

    def __init__(self, width=5, depth=2):
        super().__init__()
        self.first = nn.Linear(4, width)
        self.blocks = nn.ModuleList([ColumnBlock(width) for _ in range(depth)])
        self.head = nn.Linear(width, K)

    def forward(self, x):
        x = self.first(x).T
        for block in self.blocks:
            x = block(x)
        return self.head(x.T)


class ColumnBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        return torch.relu(self.weight @ x)


class OwnConv(nn.Module):
    """A convolution of one's own, by torch.nn.functional or by products: [N, C, T]."""

    def __init__(self, width, by_products):
        super().__init__()
        self.weight, self.by_products = nn.Parameter(torch.randn(width, width, 3) / width**0.5), by_products

    def forward(self, x):
        if self.by_products:
            return torch.tanh(torch.einsum("nctk,dck->ndt", F.pad(x, (1, 1)).unfold(2, 3, 1), self.weight))
        return torch.tanh(F.conv1d(x, self.weight, padding=1))


class OwnConvs(nn.Module):
    """Convolutions of one's own, and modules that only move axes."""

    def __init__(self, width=5):
        super().__init__()
        self.embed, self.functional, self.products = nn.Linear(4, width), OwnConv(width, False), OwnConv(width, True)
        self.move, self.grow, self.head = Move(1, 2), nn.Upsample(scale_factor=2), nn.Linear(width, K)

    def forward(self, x):
        h = self.products(self.functional(self.embed(x).transpose(1, 2)))
        return self.head(self.move(self.grow(h)).amax(1))


class Move(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.axes = first, second

    def forward(self, x):
        return x.transpose(*self.axes)


class Patches(nn.Sequential):
    """Maps, flattened, as tokens, and time first, by modules alone."""

    def __init__(self, width=5):
        maps = [nn.Conv2d(3, width, 1), nn.MaxPool2d(2), nn.Flatten(2), Move(1, 2), nn.GELU(), Move(0, 1), nn.Tanh()]
        super().__init__(*maps, Move(0, 1), nn.AdaptiveAvgPool2d((1, None)), nn.Flatten(1))
        self.head = nn.Linear(width, K)


class Places(nn.Module):
    """Learned places [T, C], without a sample axis."""

    def __init__(self, length, width):
        super().__init__()
        self.table = nn.Embedding(length, width)

    def forward(self, x):
        return self.table(torch.arange(x.shape[1], device=x.device))


class Placed(nn.Module):
    def __init__(self, length=7, width=5):
        super().__init__()
        self.embed, self.places, self.head = nn.Linear(4, width), Places(length, width), nn.Linear(width, K)

    def forward(self, x):
        return self.head(torch.relu(self.embed(x) + self.places(x)).mean(1))


@dataclass(frozen=True)
class Form:
    """A network with a shape of samples and the layouts of its measured layers."""

    name: str
    make: Callable[[], nn.Module]
    sample_shape: tuple[int, ...]
    layouts: dict[str, str] = field(default_factory=dict)
    """Layer -> layout. A layout such as `(WN)TC` has W x N along its first axis, N the faster one. Empty: no samples."""
    num_samples: int = 24
    num_ids: int | None = None


def by_layout(feature: Tensor, layout: str, num_samples: int) -> Tensor:
    """Return features [N, C] in float64, averaged over positions as the layout names its axes."""
    if layout.startswith("("):
        at, layout = layout[1:3].index("N"), layout[1:3] + layout[4:]
        feature = feature.unflatten(0, (num_samples, -1) if at == 0 else (-1, num_samples))
    assert feature.ndim == len(layout) and feature.shape[layout.index("N")] == num_samples
    positions = [axis for axis, letter in enumerate(layout) if letter not in "NC"]
    feature = feature.double().permute(layout.index("N"), layout.index("C"), *positions)
    return feature.flatten(2).mean(2) if positions else feature
