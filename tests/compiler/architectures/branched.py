"""Networks whose paths part and meet: DenseNet, SqueezeNet, GoogLeNet, Inception, DLA, HRNet."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.compiler.architectures.residual import CLASSES, BasicBlock


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(inputs), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(2 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)
        self.drop_rate = 0.1

    def forward(self, inputs):
        features = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        bottleneck = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        new_features = self.conv2(self.relu2(self.norm2(bottleneck)))
        return F.dropout(new_features, p=self.drop_rate, training=self.training)


class DenseBlock(nn.ModuleDict):
    def __init__(self, layers: int, inputs: int, growth: int) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"denselayer{i + 1}", DenseLayer(inputs + i * growth, growth))

    def forward(self, init_features):
        features = [init_features]
        for _, layer in self.items():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
            DenseBlock(2, 8, 4),
            nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Conv2d(16, 8, 1, bias=False), nn.AvgPool2d(2, 2),
            DenseBlock(2, 8, 4), nn.BatchNorm2d(16),
        )  # fmt: skip
        self.classifier = nn.Linear(16, CLASSES)

    def forward(self, x):
        out = F.relu(self.features(x), inplace=True)
        out = torch.flatten(F.adaptive_avg_pool2d(out, (1, 1)), 1)
        return self.classifier(out)


def densenet() -> nn.Module:
    return DenseNet()


class Fire(nn.Module):
    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze, self.squeeze_activation = nn.Conv2d(inputs, squeeze, 1), nn.ReLU(inplace=True)
        self.expand1x1, self.expand1x1_activation = nn.Conv2d(squeeze, expand, 1), nn.ReLU(inplace=True)
        self.expand3x3, self.expand3x3_activation = nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.squeeze_activation(self.squeeze(x))
        branches = [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))]
        return torch.cat(branches, 1)


def squeezenet() -> nn.Module:
    """No linear layer: the classifier is a convolution, its maps are averaged."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True),
        Fire(8, 4, 6), Fire(12, 4, 6), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(12, 6, 8),
        nn.Dropout(0.5), nn.Conv2d(16, CLASSES, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(),
    )  # fmt: skip


class BasicConv2d(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel, **options) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, bias=False, **options)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True)


class GoogLeNetInception(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch1 = BasicConv2d(inputs, 4, 1)
        self.branch2 = nn.Sequential(BasicConv2d(inputs, 4, 1), BasicConv2d(4, 6, 3, padding=1))
        self.branch3 = nn.Sequential(BasicConv2d(inputs, 2, 1), BasicConv2d(2, 4, 3, padding=1))
        pool = nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True)
        self.branch4 = nn.Sequential(pool, BasicConv2d(inputs, 4, 1))

    def forward(self, x):
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNet(nn.Module):
    """With an auxiliary classifier that only training reads."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.maxpool1 = BasicConv2d(3, 8, 7, stride=2, padding=3), nn.MaxPool2d(3, 2, ceil_mode=True)
        self.inception3a, self.inception3b = GoogLeNetInception(8), GoogLeNetInception(18)
        self.maxpool3 = nn.MaxPool2d(2, stride=2, ceil_mode=True)
        self.aux1, self.fc = nn.Linear(18, CLASSES), nn.Linear(18, CLASSES)
        self.avgpool, self.dropout = nn.AdaptiveAvgPool2d((1, 1)), nn.Dropout(0.2)

    def forward(self, x):
        x = self.inception3a(self.maxpool1(self.conv1(x)))
        aux = self.aux1(x.mean((2, 3))) if self.training else None
        x = self.maxpool3(self.inception3b(x))
        x = self.fc(self.dropout(torch.flatten(self.avgpool(x), 1)))
        return (x, aux) if self.training else x


def googlenet() -> nn.Module:
    return GoogLeNet()


class InceptionA(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch1x1 = BasicConv2d(inputs, 4, 1)
        self.branch5x5_1, self.branch5x5_2 = BasicConv2d(inputs, 3, 1), BasicConv2d(3, 4, 5, padding=2)
        self.branch_pool = BasicConv2d(inputs, 4, 1)

    def forward(self, x):
        branch_pool = self.branch_pool(F.avg_pool2d(x, kernel_size=3, stride=1, padding=1))
        return torch.cat([self.branch1x1(x), self.branch5x5_2(self.branch5x5_1(x)), branch_pool], 1)


class InceptionB(nn.Module):
    """Halves the maps."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = BasicConv2d(inputs, 4, 3, stride=2)

    def forward(self, x):
        return torch.cat([self.branch3x3(x), F.max_pool2d(x, kernel_size=3, stride=2)], 1)


class InceptionC(nn.Module):
    """Kernels of one row or one column."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch7x7_1 = BasicConv2d(inputs, 4, kernel=(1, 7), padding=(0, 3))
        self.branch7x7_2a = BasicConv2d(4, 4, kernel=(7, 1), padding=(3, 0))
        self.branch7x7_2b = BasicConv2d(4, 4, kernel=(1, 3), padding=(0, 1))

    def forward(self, x):
        x = self.branch7x7_1(x)
        return torch.cat([self.branch7x7_2a(x), self.branch7x7_2b(x)], 1)


class Inception(nn.Module):
    """Version 3, with the input transform of weights that came from another framework."""

    def __init__(self) -> None:
        super().__init__()
        self.transform_input = True
        self.stem, self.a, self.b, self.c = (
            BasicConv2d(3, 8, 3, stride=2),
            InceptionA(8),
            InceptionB(12),
            InceptionC(16),
        )
        self.avgpool, self.dropout, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Dropout(0.5), nn.Linear(8, CLASSES)

    def forward(self, x):
        if self.transform_input:
            x_ch0 = torch.unsqueeze(x[:, 0], 1) * (0.229 / 0.5) + (0.485 - 0.5) / 0.5
            x_ch1 = torch.unsqueeze(x[:, 1], 1) * (0.224 / 0.5) + (0.456 - 0.5) / 0.5
            x_ch2 = torch.unsqueeze(x[:, 2], 1) * (0.225 / 0.5) + (0.406 - 0.5) / 0.5
            x = torch.cat((x_ch0, x_ch1, x_ch2), 1)
        x = self.avgpool(self.c(self.b(self.a(self.stem(x)))))
        return self.fc(torch.flatten(self.dropout(x), 1))


def inception() -> nn.Module:
    return Inception()


class DlaBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x, residual=None):
        if residual is None:
            residual = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += residual
        return self.relu(out)


class Root(nn.Module):
    def __init__(self, inputs: int, outputs: int, residual: bool) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu, self.residual = nn.ReLU(inplace=True), residual

    def forward(self, *x):
        children = x
        x = self.bn(self.conv(torch.cat(x, 1)))
        if self.residual:
            x += children[0]
        return self.relu(x)


class Tree(nn.Module):
    """Deep layer aggregation: two subtrees, whose results meet in a root."""

    def __init__(self, levels: int, inputs: int, outputs: int, stride: int = 1, root_dim: int = 0) -> None:
        super().__init__()
        root_dim = root_dim or 2 * outputs
        if levels == 1:
            self.tree1, self.tree2 = DlaBlock(inputs, outputs, stride), DlaBlock(outputs, outputs, 1)
            self.root = Root(root_dim, outputs, residual=True)
        else:
            self.tree1 = Tree(levels - 1, inputs, outputs, stride)
            self.tree2 = Tree(levels - 1, outputs, outputs, root_dim=root_dim + outputs)
        self.levels, self.downsample, self.project = levels, None, None
        if stride > 1:
            self.downsample = nn.MaxPool2d(stride, stride=stride)
        if inputs != outputs:
            self.project = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x, residual=None, children=None):
        children = [] if children is None else children
        bottom = self.downsample(x) if self.downsample else x
        residual = self.project(bottom) if self.project else bottom
        x1 = self.tree1(x, residual)
        if self.levels == 1:
            x2 = self.tree2(x1)
            return self.root(x2, x1, *children)
        children.append(x1)
        return self.tree2(x1, children=children)


def dla() -> nn.Module:
    stem = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, Tree(2, 8, 12, 2), nn.AvgPool2d(8), nn.Conv2d(12, CLASSES, 1), nn.Flatten())


class HighResolutionModule(nn.Module):
    """Branches of two resolutions, each of which gets the other, resized."""

    def __init__(self, high: int, low: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(BasicBlock(width, width, 1, None) for width in (high, low))
        up = [nn.Conv2d(low, high, 1, bias=False), nn.BatchNorm2d(high), nn.Upsample(scale_factor=2, mode="nearest")]
        down = [nn.Conv2d(high, low, 3, 2, 1, bias=False), nn.BatchNorm2d(low)]
        self.fuse_layers = nn.ModuleList(
            [nn.ModuleList([nn.Identity(), nn.Sequential(*up)]), nn.ModuleList([nn.Sequential(*down), nn.Identity()])]
        )
        self.relu = nn.ReLU(True)

    def forward(self, x):
        x = [branch(part) for branch, part in zip(self.branches, x)]
        x_fuse = []
        for i, row in enumerate(self.fuse_layers):
            y = x[0] if i == 0 else row[0](x[0])
            for j in range(1, len(x)):
                y = y + x[j] if i == j else y + row[j](x[j])
            x_fuse.append(self.relu(y))
        return x_fuse


class HighResolutionNet(nn.Module):
    """With the classification head: every branch widened, added to the one below, halved."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        self.transition = nn.Sequential(
            nn.Conv2d(8, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True)
        )
        self.stage = HighResolutionModule(8, 12)
        self.incre = nn.ModuleList(nn.Conv2d(width, 16, 1) for width in (8, 12))
        self.downsamp = nn.Sequential(nn.Conv2d(16, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.final = nn.Sequential(nn.Conv2d(16, 24, 1), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(24, CLASSES)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        y_list = self.stage([x, self.transition(x)])
        y = self.incre[1](y_list[1]) + self.downsamp(self.incre[0](y_list[0]))
        y = self.final(y)
        y = F.avg_pool2d(y, kernel_size=y.size()[2:]).view(y.size(0), -1)
        return self.classifier(y)


def hrnet() -> nn.Module:
    return HighResolutionNet()
