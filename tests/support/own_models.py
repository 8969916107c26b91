"""Networks as people write them, with no knowledge of depthrate."""

import torch
from torch import nn


class MixerBlock(nn.Module):
    def __init__(self, num_patches, width, expansion=2):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        mixed = expansion * num_patches
        self.tokens = nn.Sequential(nn.Linear(num_patches, mixed), nn.GELU(), nn.Linear(mixed, num_patches))
        self.norm2 = nn.LayerNorm(width)
        self.channels = nn.Sequential(
            nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width)
        )

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer: patches by a strided convolution."""

    def __init__(self, depth, width, patch=4, image_size=8, num_classes=10):
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, stride=patch)
        self.blocks = nn.ModuleList([MixerBlock((image_size // patch) ** 2, width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


class MLP(nn.Module):
    def __init__(self, depth: int, width: int = 16, dropout: float = 0.0, num_classes: int = 10, num_inputs: int = 64):
        super().__init__()
        self.first = nn.Linear(num_inputs, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = self.drop(torch.relu(block(x)))
        return self.head(x)


class BasicBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(x + self.bn2(self.conv2(out)))


class ResNet(nn.Module):
    def __init__(self, depth=2, width=4, num_classes=10):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.Sequential(*[BasicBlock(width) for _ in range(depth)])
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.layers(torch.relu(self.stem(x)))
        return self.fc(x.mean((2, 3)))


class Branching(nn.Module):
    """Data decide what is computed."""

    def __init__(self, depth=1):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(64, 64) for _ in range(depth)])
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        for block in self.blocks:
            x = block(x) if x.sum() > 0 else torch.relu(block(x))
        return self.fc(x)


class WrongClasses(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.blocks = nn.Sequential(nn.Flatten(), nn.Linear(64, 7))

    def forward(self, x):
        return self.blocks(x)


class Fails(nn.Module):
    def __init__(self, depth=1):
        super().__init__()
        self.blocks = nn.Sequential(nn.Flatten(), nn.Linear(63, 10))

    def forward(self, x):
        return self.blocks(x)


class Collides(nn.Module):
    def __init__(self, lr=0.1):
        super().__init__()


class NeedsClass(nn.Module):
    def __init__(self, norm: type):
        super().__init__()
