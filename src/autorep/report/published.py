"""Published points to stand beside ours: quoted, never measured here.

Accuracy (top-1, %) against kept ReLUs from the AutoReP paper's tables; latencies as that paper states them (CrypTen on
two RTX 6000 GPUs over a 1 GB/s link).
"""

from __future__ import annotations

from dataclasses import dataclass

from autorep import data


@dataclass(frozen=True)
class Point:
    """One published result; `seconds` where the paper states a latency."""

    method: str
    network: str
    data: str
    relus: int
    accuracy: float | None = None
    seconds: float | None = None


PUBLISHED = (
    Point("AutoReP", "resnet18", "cifar100", 6_000, 73.79, 0.155),
    Point("AutoReP", "resnet18", "cifar100", 12_900, 74.92, 0.170),
    Point("AutoReP", "resnet18", "cifar100", 50_000, 75.48, 0.252),
    Point("all ReLU", "resnet18", "cifar100", 491_520, 77.8, 1.242),
    Point("SNL", "resnet18", "cifar100", 12_900, 66.53),
    Point("SNL", "resnet18", "cifar100", 49_900, 73.75),
    Point("DeepReDuce", "resnet18", "cifar100", 12_300, 64.97),
    Point("DeepReDuce", "resnet18", "cifar100", 49_200, 69.5),
    Point("Sphynx", "a network searched for", "cifar100", 25_600, 66.13),
    Point("CryptoNAS", "a network searched for", "cifar100", 100_000, 68.5),
    Point("SNIP", "resnet18", "cifar100", 12_900, 56.83),
    Point("AutoReP", "wide_resnet22_8", "cifar100", 120_000, 77.56, 0.550),
    Point("AutoReP", "wide_resnet22_8", "cifar100", 150_000, 78.38),
    Point("AutoReP", "wide_resnet22_8", "cifar100", 180_000, 78.23, 0.679),
    Point("all ReLU", "wide_resnet22_8", "cifar100", 1_359_872, None, 3.23),
    Point("SNL", "wide_resnet22_8", "cifar100", 120_000, 76.35),
    Point("SNL", "wide_resnet22_8", "cifar100", 180_000, 77.65),
    Point("AutoReP", "resnet18", "cifar10", 12_900, 94.31),
    Point("AutoReP", "resnet18", "tiny-imagenet", 30_000, 62.77, 0.335),
    Point("AutoReP", "resnet18", "tiny-imagenet", 55_000, 63.69, 0.373),
    Point("all ReLU", "resnet18", "tiny-imagenet", 1_966_080, None, 3.219),
    Point("AutoReP", "wide_resnet22_8", "tiny-imagenet", 300_000, 67.04),
    Point("AutoReP", "efficientnet_b2", "imagenet", 50_000, 75.55, 1.439),
    Point("AutoReP", "efficientnet_b2", "imagenet", 500_000, 76.57, 1.945),
    Point("all ReLU", "efficientnet_b2", "imagenet", 8_804_162, 78.158, 11.276),
)


def paper_accuracy(network: str, data_set: str, relus: int) -> float | None:
    """The AutoReP paper's accuracy of this very network, data set and budget."""
    wanted = ("AutoReP", network, data_set, relus)
    return next((p.accuracy for p in PUBLISHED if (p.method, p.network, p.data, p.relus) == wanted), None)


def paper_latencies(network: str, image_size: int) -> dict[int, float]:
    """ReLUs -> seconds that the paper states for this network at this image size, which its data set decides."""
    points = [p for p in PUBLISHED if (p.network, data.spec(p.data).image_size) == (network, image_size)]
    return {p.relus: p.seconds for p in points if p.seconds is not None}
