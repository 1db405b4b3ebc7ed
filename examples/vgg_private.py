"""Your own network, privately: a VGG with max pooling and functional ReLUs that AutoReP has never seen.

    python examples/vgg_private.py

Trains it on the embedded digits for some seconds, keeps 5 % of its ReLUs, compiles it, and runs the same program in
float, in fixed point and between two parties.
"""

from __future__ import annotations

import digits_task as task
import torch
from torch import nn
from torch.nn import functional as F

import autorep


class SmallVgg(nn.Module):
    """Four convolutions, two max pools, two linear layers; every ReLU is a call of F.relu, not a module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv3, self.norm3 = nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.conv4, self.norm4 = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.fc1, self.norm5 = nn.Linear(32 * 4 * 4, 64), nn.BatchNorm1d(64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        x = F.relu(self.norm3(self.conv3(x)))
        x = F.max_pool2d(F.relu(self.norm4(self.conv4(x))), 2)
        x = F.relu(self.norm5(self.fc1(x.flatten(1))))
        return self.fc2(x)


def main(epochs: int = 6, images: int = 100) -> dict[str, dict[str, float]]:
    """The whole chain; returns what `compare` measured."""
    torch.manual_seed(0)
    train_images, train_labels, test_images, test_labels = task.load_digits(size=16)

    model = SmallVgg()
    assert not autorep.check(model, train_images[:1]), "every operation of this network can be compiled"
    task.train_(model, train_images, train_labels, epochs, rate=2e-3)
    print(f"all ReLUs: {task.accuracy(model, test_images, test_labels):.1f} % of the test images")

    replacement = autorep.replace_activations_(model, train_images[:1])
    replacement.budget = replacement.total // 20
    task.train_(model, train_images, train_labels, epochs, rate=1e-3, replacement=replacement)
    print(f"{replacement.count():,} of {replacement.total:,} ReLUs: ", end="")
    print(f"{task.accuracy(model, test_images, test_labels):.1f} % of the test images")

    program = autorep.compile_program(model, train_images[:512])
    return task.compare(program, test_images[:images], test_labels[:images])


if __name__ == "__main__":
    main()
