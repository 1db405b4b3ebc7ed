"""VGG and networks of residual blocks: ResNet, ResNeXt, RegNet, Res2Net, RepVGG."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 5


def conv3x3(inputs: int, outputs: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, groups=groups, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int, downsample: nn.Module | None, **_: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv3x3(inputs, planes, stride), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = conv3x3(planes, planes), nn.BatchNorm2d(planes)
        self.relu, self.downsample = nn.ReLU(inplace=True), downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(
        self, inputs: int, planes: int, stride: int, downsample: nn.Module | None, groups: int = 1, base: int = 64
    ) -> None:
        super().__init__()
        width = int(planes * base / 64) * groups
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = conv3x3(width, width, stride, groups), nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu, self.downsample = nn.ReLU(inplace=True), downsample

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return self.relu(out)


class ResNet(nn.Module):
    """7×7 stem and max pool, as for ImageNet."""

    def __init__(self, block: type, layers: tuple[int, ...], **options: int) -> None:
        super().__init__()
        self.inplanes = 8
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        stages = [self._stage(block, 8 << i, n, 1 if i == 0 else 2, options) for i, n in enumerate(layers)]
        self.layers = nn.ModuleList(stages)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(self.inplanes, CLASSES)

    def _stage(self, block, planes: int, blocks: int, stride: int, options: dict[str, int]) -> nn.Sequential:
        downsample, outputs = None, planes * block.expansion
        if stride != 1 or self.inplanes != outputs:
            downsample = nn.Sequential(
                nn.Conv2d(self.inplanes, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )
        stage = [block(self.inplanes, planes, stride, downsample, **options)]
        self.inplanes = outputs
        stage += [block(outputs, planes, 1, None, **options) for _ in range(1, blocks)]
        return nn.Sequential(*stage)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for layer in self.layers:
            x = layer(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet() -> nn.Module:
    return ResNet(BasicBlock, (2, 1))


def resnet_deep() -> nn.Module:
    return ResNet(Bottleneck, (1, 2))


def resnext() -> nn.Module:
    return ResNet(Bottleneck, (1, 1), groups=4, base=32)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc2(F.relu(self.fc1(self.avgpool(x)), inplace=True))) * x


class RegNetBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, group_width: int, squeeze: bool) -> None:
        super().__init__()
        self.proj = None
        if inputs != outputs or stride != 1:
            self.proj = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        layers = [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        layers += [conv3x3(outputs, outputs, stride, outputs // group_width), nn.BatchNorm2d(outputs), nn.ReLU(True)]
        if squeeze:
            layers.append(SqueezeExcitation(outputs, inputs // 4))
        self.f = nn.Sequential(*layers, nn.Conv2d(outputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x):
        if self.proj is not None:
            return self.activation(self.proj(x) + self.f(x))
        return self.activation(x + self.f(x))


def regnet(squeeze: bool) -> nn.Module:
    widths = (8, 8, 16)
    blocks = [RegNetBlock(a, b, 2, 4, squeeze) for a, b in zip(widths, widths[1:])]
    stem = [nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    head = [nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(start_dim=1), nn.Linear(16, CLASSES)]
    return nn.Sequential(*stem, *blocks, RegNetBlock(16, 16, 1, 4, squeeze), *head)


def regnet_x() -> nn.Module:
    return regnet(squeeze=False)


def regnet_y() -> nn.Module:
    return regnet(squeeze=True)


class Bottle2neck(nn.Module):
    """Res2Net's: the middle convolution in four parts, each fed with the one before."""

    def __init__(self, channels: int, scale: int = 4) -> None:
        super().__init__()
        self.width, self.nums = channels // scale, scale - 1
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.convs = nn.ModuleList(conv3x3(self.width, self.width) for _ in range(self.nums))
        self.bns = nn.ModuleList(nn.BatchNorm2d(self.width) for _ in range(self.nums))
        self.conv3, self.bn3 = nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        residual = x
        spx = torch.split(self.relu(self.bn1(self.conv1(x))), self.width, 1)
        sp = out = spx[0]
        for i in range(self.nums):
            sp = spx[i] if i == 0 else sp + spx[i]
            sp = self.relu(self.bns[i](self.convs[i](sp)))
            out = sp if i == 0 else torch.cat((out, sp), 1)
        out = torch.cat((out, spx[self.nums]), 1)
        out = self.bn3(self.conv3(out))
        out += residual
        return self.relu(out)


def res2net() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, Bottle2neck(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(16, CLASSES))


class RepVGGBlock(nn.Module):
    """As trained: a 3×3 branch, a 1×1 branch, and a batch norm of the input itself where shapes allow."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.rbr_identity = nn.BatchNorm2d(inputs) if outputs == inputs and stride == 1 else None
        self.rbr_dense = nn.Sequential(conv3x3(inputs, outputs, stride), nn.BatchNorm2d(outputs))
        self.rbr_1x1 = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.nonlinearity, self.se = nn.ReLU(), nn.Identity()

    def forward(self, inputs):
        id_out = 0 if self.rbr_identity is None else self.rbr_identity(inputs)
        return self.nonlinearity(self.se(self.rbr_dense(inputs) + self.rbr_1x1(inputs) + id_out))


class RepVGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stage0 = RepVGGBlock(3, 8, 2)
        self.stage1 = nn.Sequential(RepVGGBlock(8, 8, 2), RepVGGBlock(8, 8, 1))
        self.gap, self.linear = nn.AdaptiveAvgPool2d(output_size=1), nn.Linear(8, CLASSES)

    def forward(self, x):
        out = self.gap(self.stage1(self.stage0(x)))
        return self.linear(out.view(out.size(0), -1))


def repvgg() -> nn.Module:
    return RepVGG()


class VGG(nn.Module):
    def __init__(self, plan: tuple[int | str, ...], batch_norm: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for entry in plan:
            if entry == "M":
                layers.append(nn.MaxPool2d(kernel_size=2, stride=2))
                continue
            layers.append(nn.Conv2d(inputs, int(entry), kernel_size=3, padding=1))
            layers += [nn.BatchNorm2d(int(entry))] if batch_norm else []
            layers.append(nn.ReLU(inplace=True))
            inputs = int(entry)
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(inputs * 7 * 7, 16), nn.ReLU(True), nn.Dropout(), nn.Linear(16, 16), nn.ReLU(True), nn.Dropout(),
            nn.Linear(16, CLASSES),
        )  # fmt: skip

    def forward(self, x):
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


def vgg() -> nn.Module:
    """The last maps are 4×4: the pool to 7×7 repeats rows."""
    return VGG((8, "M", 8, "M", 8, 8, "M"), batch_norm=True)
