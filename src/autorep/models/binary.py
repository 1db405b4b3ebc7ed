"""Binary networks: weights and activations are 1 or −1, as in XONN (Riazi et al., 2019) and TAPAS.

A unit computes sign(batch norm(Σ ±x)); the first layer reads real images, the last gives real logits. In training,
gradients pass a sign where its input is within ±1, and the weights behind the signs are real.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _StraightThroughSign(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


def binary(x: Tensor, training: bool) -> Tensor:
    """The sign, trainable; in evaluation torch's own, which the compiler knows."""
    return _StraightThroughSign.apply(x) if training else torch.sign(x)


class Sign(nn.Module):
    """The activation."""

    def forward(self, x: Tensor) -> Tensor:
        return binary(x, self.training)


class BinaryConv2d(nn.Conv2d):
    """A convolution without bias whose weights are the signs of its parameters."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(channels_in, channels, kernel, stride, kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, binary(self.weight, self.training), None, self.stride, self.padding)


def unit(channels_in: int, channels: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    """Binary convolution, batch norm, sign."""
    return [BinaryConv2d(channels_in, channels, kernel, stride), nn.BatchNorm2d(channels), Sign()]


def binary_digits(num_classes: int = 10, channels: int = 1) -> nn.Sequential:
    """2,560 signs at 8×8: three binary layers and a real one."""
    layers = [*unit(channels, 16), *unit(16, 32, stride=2), *unit(32, 64)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 4 * 4, num_classes))


def binary_cifar(num_classes: int = 10, channels: int = 3) -> nn.Sequential:
    """XONN's BC1, MiniONN's CIFAR-10 network with signs in place of its ReLUs: 173,056 of them at 32×32."""
    body: list[nn.Module] = [*unit(channels, 64), *unit(64, 64), nn.AvgPool2d(2), *unit(64, 64), *unit(64, 64)]
    body += [nn.AvgPool2d(2), *unit(64, 64), *unit(64, 64, kernel=1), *unit(64, 16, kernel=1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(16 * 8 * 8, num_classes))
