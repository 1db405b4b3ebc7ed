"""What calibration batches tell about every layer: largest values and moments, measured on the float program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from autorep.compiler.draft import Draft
from autorep.errors import ConfigError, DataError, RangeError
from autorep.program.floating import run_ops
from autorep.program.ir import Activation, Op

SAMPLE = 4  # images of each batch that enter the moments; largest values are taken over all


@dataclass(frozen=True)
class Range:
    """Largest |value| and mean square of one operation's result."""

    largest: float
    square: float


@dataclass(frozen=True)
class ActivationRange:
    """What an activation reads: largest |y| at its kept positions, moments at the quadratic ones."""

    kept_largest: float
    quad_square: float
    quad_fourth: float


@dataclass(frozen=True)
class Calibration:
    """Ranges by operation name, over all images but those set aside as outliers.

    Attributes:
        answers: what the float program said of every image.
        used: flags of the images that were not set aside.
    """

    answers: np.ndarray
    used: np.ndarray
    values: dict[str, Range]
    activations: dict[str, ActivationRange]

    @property
    def images(self) -> int:
        return len(self.used)

    @property
    def left_out(self) -> int:
        return len(self.used) - int(self.used.sum())

    def facts(self) -> dict[str, Any]:
        """The ranges as plain values, to be kept with a model so that it compiles again without any image."""
        return {
            "images": self.images,
            "values": {name: _rounded(found) for name, found in self.values.items()},
            "activations": {name: _rounded(found) for name, found in self.activations.items()},
        }


def _rounded(found: Range | ActivationRange) -> list[float]:
    """Six digits: widths are chosen by powers of two."""
    return [float(f"{value:.6g}") for value in astuple(found)]


def recalled(draft: Draft, facts: Mapping[str, Any]) -> Calibration:
    """Ranges that `Calibration.facts` wrote down for the same network."""
    activations = {op.name for op in draft.ops.values() if isinstance(op, Activation)}
    if set(facts["values"]) != set(draft.ops) or set(facts["activations"]) != activations:
        raise RangeError(
            "the ranges stored with this model were measured on another network or by another release; calibrate on "
            "images instead (--data-path)"
        )
    return Calibration(
        np.empty((0, *draft.output.shape)),
        np.ones(int(facts["images"]), bool),
        {name: Range(*found) for name, found in facts["values"].items()},
        {name: ActivationRange(*found) for name, found in facts["activations"].items()},
    )


def calibrate(draft: Draft, batches: Iterable[np.ndarray], outliers: float = 0.0) -> Calibration:
    """Run every batch through the float program and keep largest values and moments.

    Arguments:
        outliers: share of the images that may be set aside: those that reach furthest beyond the median image in any
            layer. Their answers may be wrong in fixed point; without them the scales can be finer.
    """
    if not 0.0 <= outliers < 0.5:
        raise ConfigError(f"outliers = {outliers}: a share from 0 up to, not including, 0.5")
    seen = _Seen(draft)
    answers = []
    for batch in batches:
        if not np.isfinite(batch).all():
            raise DataError("a calibration batch contains values that are not finite")
        with np.errstate(over="ignore", invalid="ignore"):  # reported by layer below
            answers.append(run_ops(list(draft.ops.values()), draft.parameters, batch, seen.observe, np.float32))
    if not seen.largest:
        raise DataError("no calibration images; give at least one batch, better a few hundred images")
    largest = {name: np.concatenate(parts) for name, parts in seen.largest.items()}
    images = len(largest[draft.output.name])
    used = _without_outliers(largest, int(outliers * images))
    for name, values in largest.items():
        if not np.isfinite(values[used]).all():
            raise RangeError(
                f"layer {name!r} ({type(draft.ops[name]).__name__}): values are not finite for "
                f"{int((~np.isfinite(values)).sum())} of {images} calibration images. {_why_infinite(draft)}"
            )
    kept = {name: np.concatenate(parts)[used].max() for name, parts in seen.kept.items()}
    return Calibration(
        np.concatenate(answers),
        used,
        {name: Range(float(largest[name][used].max()), _typical(seen.square[name])) for name in draft.ops},
        {
            name: ActivationRange(
                float(kept.get(name, 0.0)), _typical(seen.quad_square[name]), _typical(seen.quad_fourth[name])
            )
            for name, op in draft.ops.items()
            if isinstance(op, Activation)
        },
    )


def _why_infinite(draft: Draft) -> str:
    if any(isinstance(op, Activation) and op.quad_count for op in draft.ops.values()):
        return (
            "The quadratics before it diverge: start from flatter ones (a smaller curve), fine-tune with a range "
            "penalty, re-estimate the batch norms, keep more ReLUs, or set a share of the images aside (outliers)"
        )
    return "The network's values explode; see whether its weights and batch norms are those of a trained network"


def assume(draft: Draft, largest: float) -> Calibration:
    """Ranges nobody measured: every value reaches `largest`, mean square 1, as after batch norm."""
    activations = [op.name for op in draft.ops.values() if isinstance(op, Activation)]
    return Calibration(
        np.empty((0, *draft.output.shape)),
        np.empty(0, bool),
        {name: Range(largest, 1.0) for name in draft.ops},
        {name: ActivationRange(largest, 1.0, 3.0) for name in activations},
    )


class _Seen:
    """Numbers per image, collected while batches run."""

    def __init__(self, draft: Draft) -> None:
        self._readers = draft.consumers()
        self.largest: dict[str, list[np.ndarray]] = defaultdict(list)
        self.kept: dict[str, list[np.ndarray]] = defaultdict(list)
        self.square: dict[str, list[np.ndarray]] = defaultdict(list)
        self.quad_square: dict[str, list[np.ndarray]] = defaultdict(list)
        self.quad_fourth: dict[str, list[np.ndarray]] = defaultdict(list)

    def observe(self, op: Op, value: np.ndarray) -> None:
        flat = value.reshape(len(value), -1)
        self.largest[op.name].append(_largest(flat))
        self.square[op.name].append(_mean_square(flat[:SAMPLE]))
        for reader in self._readers[op.name]:
            if isinstance(reader, Activation) and reader.kept_count:
                self.kept[reader.name].append(_largest(flat[:, reader.kept]))
            if isinstance(reader, Activation) and reader.quad_count:
                squares = np.square(flat[:SAMPLE, reader.quad_index], dtype=np.float64)
                self.quad_square[reader.name].append(squares.mean(axis=1))
                self.quad_fourth[reader.name].append(_mean_square(squares))


def _without_outliers(largest: dict[str, np.ndarray], count: int) -> np.ndarray:
    """Flags of the images that count: all but the `count` that reach furthest beyond the median image."""
    table = np.stack(list(largest.values())).astype(np.float64)
    median = np.median(table, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):  # infinite in most images: the median image diverges too
        reach = np.nan_to_num(table / np.maximum(median, 1e-30), nan=np.inf).max(axis=0)
    used = np.ones(table.shape[1], bool)
    used[np.argsort(reach)[table.shape[1] - count :]] = False
    return used


def _largest(flat: np.ndarray) -> np.ndarray:
    """Largest |value| of every image; infinite where anything is not finite."""
    return np.nan_to_num(np.maximum(flat.max(axis=1), -flat.min(axis=1)), nan=np.inf)


def _mean_square(flat: np.ndarray) -> np.ndarray:
    return np.square(flat, dtype=np.float64).mean(axis=1)


def _typical(per_image: list[np.ndarray]) -> float:
    """Median over the images: a few that explode must not decide the scales of all others."""
    return float(np.median(np.nan_to_num(np.concatenate(per_image), nan=np.inf))) if per_image else 0.0
