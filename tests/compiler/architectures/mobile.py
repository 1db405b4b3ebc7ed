"""Networks of depthwise convolutions: MobileNets, MNASNet, EfficientNet, ShuffleNet, GhostNet, Xception."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from tests.compiler.architectures.residual import CLASSES


def conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, act=nn.ReLU6, **options):
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, **options),
    ]
    return nn.Sequential(*layers, *([act(inplace=True)] if act is not None else []))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, ratio: int) -> None:
        super().__init__()
        hidden = int(round(inputs * ratio))
        self.use_res_connect = stride == 1 and inputs == outputs
        layers = [conv_norm(inputs, hidden, 1)] if ratio != 1 else []
        layers += [conv_norm(hidden, hidden, stride=stride, groups=hidden), conv_norm(hidden, outputs, 1, act=None)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


class MobileNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [InvertedResidual(8, 8, 1, 1), InvertedResidual(8, 12, 2, 6), InvertedResidual(12, 12, 1, 6)]
        self.features = nn.Sequential(conv_norm(3, 8, stride=2), *blocks, conv_norm(12, 32, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(32, CLASSES))

    def forward(self, x):
        x = self.features(x)
        x = nn.functional.adaptive_avg_pool2d(x, (1, 1)).reshape(x.shape[0], -1)
        return self.classifier(x)


def mobilenet_v2() -> nn.Module:
    return MobileNetV2()


class MnasBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        middle, options = inputs * expansion, {"momentum": 1 - 0.9997}
        self.apply_residual = inputs == outputs and stride == 1
        self.layers = nn.Sequential(
            nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle, **options), nn.ReLU(inplace=True),
            nn.Conv2d(middle, middle, kernel, padding=kernel // 2, stride=stride, groups=middle, bias=False),
            nn.BatchNorm2d(middle, **options), nn.ReLU(inplace=True),
            nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs, **options),
        )  # fmt: skip

    def forward(self, x):
        return self.layers(x) + x if self.apply_residual else self.layers(x)


class MNASNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        stem = [
            conv_norm(3, 8, stride=2, act=nn.ReLU),
            conv_norm(8, 8, groups=8, act=nn.ReLU),
            conv_norm(8, 8, 1, act=None),
        ]
        self.layers = nn.Sequential(*stem, MnasBlock(8, 12, 3, 2, 3), MnasBlock(12, 12, 5, 1, 3))
        self.classifier = nn.Sequential(nn.Dropout(p=0.2, inplace=True), nn.Linear(12, CLASSES))

    def forward(self, x):
        x = self.layers(x)
        return self.classifier(x.mean([2, 3]))


def mnasnet() -> nn.Module:
    return MNASNet()


class Squeeze(nn.Module):
    """Squeeze and excitation with chosen activation and gate."""

    def __init__(self, channels: int, squeezed: int, activation: nn.Module, scale_activation: nn.Module) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.scale_activation = activation, scale_activation

    def forward(self, x):
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class MobileV3Block(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, se: bool, act: type) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and inputs == outputs
        layers = [conv_norm(inputs, hidden, 1, act=act)] if hidden != inputs else []
        layers.append(conv_norm(hidden, hidden, kernel, stride, hidden, act))
        layers += [Squeeze(hidden, 8, nn.ReLU(), nn.Hardsigmoid())] if se else []
        self.block = nn.Sequential(*layers, conv_norm(hidden, outputs, 1, act=None))

    def forward(self, x):
        result = self.block(x)
        if self.use_res_connect:
            result += x
        return result


class MobileNetV3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            conv_norm(3, 8, stride=2, act=nn.Hardswish, eps=0.001),
            MobileV3Block(8, 8, 8, 3, 2, True, nn.ReLU),
            MobileV3Block(8, 16, 12, 5, 1, False, nn.Hardswish),
            MobileV3Block(12, 24, 12, 5, 1, True, nn.Hardswish),
            conv_norm(12, 24, 1, act=nn.Hardswish),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(24, 16), nn.Hardswish(inplace=True), nn.Dropout(p=0.2, inplace=True), nn.Linear(16, CLASSES)
        )

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def mobilenet_v3() -> nn.Module:
    return MobileNetV3()


class MBConv(nn.Module):
    """EfficientNet's, with stochastic depth."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, ratio: int, drop: float) -> None:
        super().__init__()
        hidden, act = inputs * ratio, nn.SiLU
        layers = [conv_norm(inputs, hidden, 1, act=act)] if ratio != 1 else []
        layers.append(conv_norm(hidden, hidden, kernel, stride, hidden, act))
        layers.append(Squeeze(hidden, max(1, inputs // 4), nn.SiLU(inplace=True), nn.Sigmoid()))
        self.block = nn.Sequential(*layers, conv_norm(hidden, outputs, 1, act=None))
        self.skip, self.drop = stride == 1 and inputs == outputs, drop

    def forward(self, x):
        result = self.block(x)
        if self.skip:
            if self.training and self.drop > 0:
                keep = torch.empty(x.shape[0], 1, 1, 1, device=x.device).bernoulli_(1 - self.drop)
                result = result * keep / (1 - self.drop)
            result += x
        return result


def efficientnet_b0() -> nn.Module:
    blocks = [MBConv(8, 8, 3, 1, 1, 0.0), MBConv(8, 12, 3, 2, 6, 0.1), MBConv(12, 12, 5, 1, 6, 0.2)]
    return nn.Sequential(
        conv_norm(3, 8, stride=2, act=nn.SiLU), *blocks, conv_norm(12, 24, 1, act=nn.SiLU), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(1), nn.Dropout(0.2, inplace=True), nn.Linear(24, CLASSES),
    )  # fmt: skip


def channel_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    return torch.transpose(x, 1, 2).contiguous().view(batch, channels, height, width)


class ShuffleBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, features = stride, outputs // 2
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(
                conv_norm(inputs, inputs, stride=stride, groups=inputs, act=None),
                conv_norm(inputs, features, 1, act=nn.ReLU),
            )
        self.branch2 = nn.Sequential(
            conv_norm(inputs if stride > 1 else features, features, 1, act=nn.ReLU),
            conv_norm(features, features, stride=stride, groups=features, act=None),
            conv_norm(features, features, 1, act=nn.ReLU),
        )

    def forward(self, x):
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.maxpool = conv_norm(3, 8, stride=2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)
        self.stage2 = nn.Sequential(ShuffleBlock(8, 16, 2), ShuffleBlock(16, 16, 1), ShuffleBlock(16, 16, 1))
        self.conv5, self.fc = conv_norm(16, 24, 1, act=nn.ReLU), nn.Linear(24, CLASSES)

    def forward(self, x):
        x = self.conv5(self.stage2(self.maxpool(self.conv1(x))))
        return self.fc(x.mean([2, 3]))


def shufflenet_v2() -> nn.Module:
    return ShuffleNetV2()


class GhostModule(nn.Module):
    def __init__(self, inputs: int, outputs: int, relu: bool = True) -> None:
        super().__init__()
        self.oup, first = outputs, math.ceil(outputs / 2)
        act = nn.ReLU if relu else None
        self.primary_conv = conv_norm(inputs, first, 1, act=act)
        self.cheap_operation = conv_norm(first, first, 3, groups=first, act=act)

    def forward(self, x):
        x1 = self.primary_conv(x)
        x2 = self.cheap_operation(x1)
        return torch.cat([x1, x2], dim=1)[:, : self.oup, :, :]


def hard_sigmoid(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    if inplace:
        return x.add_(3.0).clamp_(0.0, 6.0).div_(6.0)
    return F.relu6(x + 3.0) / 6.0


class GhostGate(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.avg_pool, self.act1 = nn.AdaptiveAvgPool2d(1), nn.ReLU(inplace=True)
        self.conv_reduce, self.conv_expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)

    def forward(self, x):
        x_se = self.conv_expand(self.act1(self.conv_reduce(self.avg_pool(x))))
        return x * hard_sigmoid(x_se, inplace=True)


class GhostBottleneck(nn.Module):
    def __init__(self, inputs: int, middle: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.ghost1, self.ghost2 = GhostModule(inputs, middle), GhostModule(middle, outputs, relu=False)
        self.conv_dw = conv_norm(middle, middle, 3, stride, middle, act=None) if stride > 1 else nn.Sequential()
        self.se = GhostGate(middle)
        self.shortcut = nn.Sequential()
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(
                conv_norm(inputs, inputs, 3, stride, inputs, act=None), conv_norm(inputs, outputs, 1, act=None)
            )

    def forward(self, x):
        residual = x
        x = self.ghost2(self.se(self.conv_dw(self.ghost1(x))))
        x += self.shortcut(residual)
        return x


def ghostnet() -> nn.Module:
    """An odd number of channels in the middle: the second half is cut."""
    return nn.Sequential(
        conv_norm(3, 8, stride=2, act=nn.ReLU), GhostBottleneck(8, 11, 12, 2), GhostBottleneck(12, 13, 12, 1),
        conv_norm(12, 16, 1, act=nn.ReLU), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16, CLASSES),
    )  # fmt: skip


class SeparableConv2d(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, inputs, 3, 1, 1, groups=inputs, bias=False)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x):
        return self.pointwise(self.conv1(x))


class XceptionBlock(nn.Module):
    """With an in-place ReLU first, which also changes what the skip connection reads, as in public repositories."""

    def __init__(self, inputs: int, outputs: int, repeats: int, stride: int, start_with_relu: bool = True) -> None:
        super().__init__()
        self.skip = self.skipbn = None
        if outputs != inputs or stride != 1:
            self.skip, self.skipbn = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        rep: list[nn.Module] = []
        for number in range(repeats):
            rep += [self.relu, SeparableConv2d(inputs if number == 0 else outputs, outputs), nn.BatchNorm2d(outputs)]
        rep = rep if start_with_relu else rep[1:]
        self.rep = nn.Sequential(*rep, *([nn.MaxPool2d(3, stride, 1)] if stride != 1 else []))

    def forward(self, inp):
        x = self.rep(inp)
        skip = inp if self.skip is None else self.skipbn(self.skip(inp))
        x += skip
        return x


class Xception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3, 2, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.block1, self.block2 = XceptionBlock(8, 12, 2, 2, start_with_relu=False), XceptionBlock(12, 12, 3, 1)
        self.conv3, self.bn3 = SeparableConv2d(12, 16), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.block2(self.block1(self.relu(self.bn1(self.conv1(x)))))
        x = self.relu(self.bn3(self.conv3(x)))
        x = F.adaptive_avg_pool2d(x, (1, 1))
        return self.fc(x.view(x.size(0), -1))


def xception() -> nn.Module:
    return Xception()
