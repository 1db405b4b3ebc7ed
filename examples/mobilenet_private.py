"""Your own network, privately: a MobileNet with depthwise convolutions and ReLU6 that AutoReP has never seen.

    python examples/mobilenet_private.py

As examples/vgg_private.py, but in the simplest way: the 10 % of activations that matter most are chosen at once, all
others become quadratics, and the network is trained on as it then is.
"""

from __future__ import annotations

import digits_task as task
import torch
from torch import nn
from torch.nn import functional as F

import autorep


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, project; a shortcut where the shape is kept."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        wide = 4 * channels_in
        self.expand = nn.Sequential(nn.Conv2d(channels_in, wide, 1, bias=False), nn.BatchNorm2d(wide))
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.depthwise = nn.Sequential(depthwise, nn.BatchNorm2d(wide))
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))
        self.activation = nn.ReLU6()  # one module, called twice: two places to replace
        self.shortcut = stride == 1 and channels_in == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.expand(x))
        y = self.project(self.activation(self.depthwise(y)))
        return x + y if self.shortcut else y


class SmallMobileNet(nn.Module):
    """A stem, three inverted residual blocks, a head, average pooling, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.blocks = nn.Sequential(
            InvertedResidual(8, 12, 2), InvertedResidual(12, 12, 1), InvertedResidual(12, 16, 2)
        )
        self.head = nn.Sequential(nn.Conv2d(16, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6())
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.adaptive_avg_pool2d(self.head(self.blocks(self.stem(x))), 1)
        return self.classifier(x.flatten(1))


def main(epochs: int = 8, images: int = 100) -> dict[str, dict[str, float]]:
    """The whole chain; returns what `compare` measured."""
    torch.manual_seed(0)
    train_images, train_labels, test_images, test_labels = task.load_digits(size=16)

    model = SmallMobileNet()
    assert not autorep.check(model, train_images[:1]), "every operation of this network can be compiled"
    task.train_(model, train_images, train_labels, epochs, rate=5e-3)
    print(f"all ReLU6: {task.accuracy(model, test_images, test_labels):.1f} % of the test images")

    replacement = autorep.replace_activations_(model, train_images[:1])
    replacement.budget = replacement.total // 10
    task.train_(model, train_images, train_labels, epochs, rate=1e-3, replacement=replacement)
    print(f"{replacement.count():,} of {replacement.total:,} ReLU6: ", end="")
    print(f"{task.accuracy(model, test_images, test_labels):.1f} % of the test images")

    program = autorep.compile_program(model, train_images[:512])
    return task.compare(program, test_images[:images], test_labels[:images])


if __name__ == "__main__":
    main()
