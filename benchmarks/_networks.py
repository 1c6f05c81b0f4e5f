"""Networks of the training benchmarks: an MLP, ResNet-18 for small images, a Llama-style language model."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def mlp(*widths: int) -> nn.Sequential:
    """Fully connected ReLU network with these widths, input and output included."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class _Block(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.shortcut = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 with a 3x3 stem for images of 32 x 32 pixels; 62 parameter tensors.

    ``BLOCKS`` groups them as the paper does: stem, four stages, head.
    """

    BLOCKS = (3, 12, 15, 15, 15, 2)

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
        stages: list[nn.Module] = []
        n_in = 64
        for n_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages.append(nn.Sequential(_Block(n_in, n_out, stride), _Block(n_out, n_out, 1)))
            n_in = n_out
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(512, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (batch, 3, 32, 32) to logits (batch, n_classes)."""
        return self.head(self.stages(self.stem(x)).mean(dim=(2, 3)))


class _RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class _Layer(nn.Module):
    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = _RMSNorm(dim), _RMSNorm(dim)
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        batch, length, dim = x.shape
        y = self.norm1(x)
        q, k, v = (
            proj(y).view(batch, length, self.heads, -1).transpose(1, 2) for proj in (self.q, self.k, self.v)
        )
        attended = F.scaled_dot_product_attention(_rotate(q, turn), _rotate(k, turn), v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, dim))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def _rotate(x: Tensor, turn: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype)


class Llama(nn.Module):
    """Pre-norm transformer with rotary positions and SwiGLU; the defaults have 15 million parameters."""

    def __init__(
        self, vocabulary: int = 32_000, dim: int = 288, layers: int = 6, heads: int = 6, length: int = 256
    ) -> None:
        super().__init__()
        hidden = 32 * ((8 * dim // 3 + 31) // 32)
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(_Layer(dim, heads, hidden) for _ in range(layers))
        self.norm = _RMSNorm(dim)
        frequency = 1e4 ** (-torch.arange(0, dim // heads, 2) / (dim // heads))
        angle = torch.outer(torch.arange(length), frequency)
        self.register_buffer("turn", torch.polar(torch.ones_like(angle), angle), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, length) to logits (batch, length, vocabulary); the embedding serves twice."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.turn[: tokens.shape[1]])
        return F.linear(self.norm(x), self.embed.weight)
