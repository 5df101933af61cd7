"""Networks for images, video and sound in plain PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from .text_networks import Block


class ViT(nn.Module):
    def __init__(self, width=768, layers=12, heads=12, patch=16, size=224, outputs=1000, **block):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False, **block) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride=1):
        super().__init__()
        self.path = nn.Sequential(
            *normalised(inputs, width, 1),
            nn.ReLU(inplace=True),
            *normalised(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *normalised(width, 4 * width, 1),
        )
        changes = stride != 1 or inputs != 4 * width
        self.shortcut = nn.Sequential(*normalised(inputs, 4 * width, 1, stride)) if changes else nn.Identity()

    def forward(self, x):
        return F.relu(self.path(x) + self.shortcut(x), inplace=True)


def normalised(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)


class ResNet(nn.Module):
    def __init__(self, depths=(3, 4, 6, 3), width=64, outputs=1000):
        super().__init__()
        self.stem = nn.Sequential(*normalised(3, width, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, inputs = [], width
        for stage, depth in enumerate(depths):
            for number in range(depth):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not number else 1))
                inputs = 4 * (width << stage)
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(inputs, outputs)

    def forward(self, images):
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(images)), 1).flatten(1))


class DoubleConvolution(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            *normalised(inputs, outputs, 3),
            nn.ReLU(inplace=True),
            *normalised(outputs, outputs, 3),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """For segmentation: four levels down by pooling, four up by transposed convolution, with skips."""

    def __init__(self, width=32, classes=21):
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(DoubleConvolution(a, b) for a, b in zip([3, *widths], widths, strict=False))
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.up = nn.ModuleList(DoubleConvolution(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for level, part in enumerate(self.down):
            x = part(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for rise, part in zip(self.rise, self.up, strict=True):
            x = part(torch.cat([skips.pop(), rise(x)], dim=1))
        return self.head(x)


class DiffusionBlock(nn.Module):
    """A residual block with group normalisation and a time embedding."""

    def __init__(self, inputs, outputs, times):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class PixelAttention(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.norm, self.inputs, self.output = (
            nn.GroupNorm(32, width),
            nn.Conv1d(width, 3 * width, 1),
            nn.Conv1d(width, width, 1),
        )
        self.heads = heads

    def forward(self, x):
        batch, width, *size = x.shape
        parts = self.inputs(self.norm(x).flatten(2)).view(batch, 3, self.heads, -1, x[0, 0].numel())
        q, k, v = parts.transpose(-1, -2).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v).transpose(-1, -2).reshape(batch, width, -1)
        return x + self.output(y).view(batch, width, *size)


class Diffusion(nn.Module):
    """A small U-Net that predicts noise."""

    def __init__(self, width=128, times=512):
        super().__init__()
        self.times = nn.Sequential(nn.Linear(width, times), nn.SiLU(), nn.Linear(times, times))
        self.enter, self.width = nn.Conv2d(3, width, 3, padding=1), width
        self.down = nn.ModuleList([DiffusionBlock(width, width, times), DiffusionBlock(width, 2 * width, times)])
        self.smaller = nn.ModuleList([nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)])
        self.middle = DiffusionBlock(2 * width, 2 * width, times)
        self.attention = PixelAttention(2 * width)
        self.up = nn.ModuleList([DiffusionBlock(4 * width, width, times), DiffusionBlock(2 * width, width, times)])
        self.leave = nn.Sequential(nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x, step):
        frequencies = torch.exp(-torch.arange(self.width // 2, device=x.device) / 14)
        angles = step[:, None].float() * frequencies
        time = self.times(torch.cat([angles.sin(), angles.cos()], dim=1).to(x.dtype))
        x, skips = self.enter(x), []
        for block, smaller in zip(self.down, self.smaller, strict=True):
            x = block(x, time)
            skips.append(x)
            x = smaller(x)
        x = self.attention(self.middle(x, time))
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0, mode="nearest"), skips.pop()], dim=1), time)
        return self.leave(x)


class Video(nn.Module):
    def __init__(self, width=64, classes=400):
        super().__init__()
        layers, inputs = [], 3
        for outputs in (width, 2 * width, 4 * width):
            layers += [nn.Conv3d(inputs, outputs, 3, padding=1), nn.BatchNorm3d(outputs), nn.ReLU(), nn.MaxPool3d(2)]
            inputs = outputs
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inputs, classes)

    def forward(self, clips):
        return self.head(self.layers(clips).mean(dim=(2, 3, 4)))


class Sound(nn.Module):
    """Dilated one-dimensional convolutions with gates and weight normalisation, as in a WaveNet."""

    def __init__(self, width=128, layers=8):
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(width, 2 * width, 3, padding=1 << i, dilation=1 << i))
            for i in range(layers)
        )
        self.leave = nn.Conv1d(width, 256, 1)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            value, gate = layer(x).chunk(2, dim=1)
            x = x + value.tanh() * gate.sigmoid()
        return self.leave(x)


def generator(width=64, noise=128):
    layers = [nn.ConvTranspose2d(noise, 8 * width, 4), nn.BatchNorm2d(8 * width), nn.ReLU()]
    for factor in (8, 4, 2):
        layers += [
            nn.ConvTranspose2d(factor * width, factor * width // 2, 4, 2, 1),
            nn.BatchNorm2d(factor * width // 2),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())


def discriminator(width=64):
    layers = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for factor in (1, 2, 4):
        layers += [
            nn.Conv2d(factor * width, 2 * factor * width, 4, 2, 1),
            nn.InstanceNorm2d(2 * factor * width),
            nn.LeakyReLU(0.2),
        ]
    return nn.Sequential(*layers, nn.Conv2d(8 * width, 1, 4), nn.Flatten())


def autoencoder(width=48):
    down = [
        part
        for a, b in ((3, width), (width, 2 * width), (2 * width, 4 * width))
        for part in (nn.Conv2d(a, b, 3, 2, 1), nn.ReLU())
    ]
    up = [
        part
        for a, b in ((4 * width, 2 * width), (2 * width, width))
        for part in (nn.ConvTranspose2d(a, b, 4, 2, 1), nn.ReLU())
    ]
    return nn.Sequential(*down, *up, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Sigmoid())
