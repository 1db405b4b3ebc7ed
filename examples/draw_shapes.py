"""Draw a folder of pictures to try things with: circles, squares and triangles of any colour on any ground.

python examples/draw_shapes.py shapes --count 200
"""

from __future__ import annotations

import argparse
import colorsys
import math
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFilter

SIZE = 64
CORNERS = {"circle": 40, "square": 4, "triangle": 3}


def draw(corners: int, dice: random.Random) -> Image.Image:
    """One filled polygon, placed and a little turned at random, a little blurred."""
    hue = dice.random()
    ground = _colour(hue + 0.5 + dice.uniform(-0.2, 0.2), dice.uniform(0.1, 0.5))
    picture = Image.new("RGB", (SIZE, SIZE), ground)
    radius, turn = dice.uniform(18, 28), -math.pi / 2 + (math.pi / 4 if corners == 4 else 0) + dice.uniform(-0.2, 0.2)
    x, y = (dice.uniform(radius, SIZE - radius) for _ in range(2))
    angles = [turn + 2 * math.pi * i / corners for i in range(corners)]
    points = [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]
    ImageDraw.Draw(picture).polygon(points, fill=_colour(hue, dice.uniform(0.7, 1.0)))
    return picture.filter(ImageFilter.GaussianBlur(0.7))


def _colour(hue: float, value: float) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, 0.8, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=200, help="pictures of each shape")
    arguments = parser.parse_args()
    dice = random.Random(0)
    for name, corners in CORNERS.items():
        folder = arguments.out / name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(arguments.count):
            draw(corners, dice).save(folder / f"{number:03}.png")
    print(f"{arguments.out}: {arguments.count} pictures each of {', '.join(CORNERS)}")


if __name__ == "__main__":
    main()
