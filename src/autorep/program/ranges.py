"""What calibration batches tell about every layer: largest values and moments, measured on the float program."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from autorep.errors import DataError, RangeError
from autorep.program.draft import Draft
from autorep.program.floating import run_ops
from autorep.program.ir import Activation, Op

SAMPLE = 4  # images of each batch that enter the moments; largest values are taken over all


@dataclass
class Range:
    """Largest |value| and mean square of one operation's result."""

    largest: float = 0.0
    square: float = 0.0


@dataclass
class ActivationRange:
    """What an activation reads: largest |y| at its kept positions, moments at the quadratic ones."""

    kept_largest: float = 0.0
    quad_square: float = 0.0
    quad_fourth: float = 0.0


@dataclass
class Calibration:
    """Ranges by operation name, over `images` images."""

    images: int
    values: dict[str, Range]
    activations: dict[str, ActivationRange]


def calibrate(draft: Draft, batches: Iterable[np.ndarray]) -> Calibration:
    """Run every batch through the float program and keep largest values and moments."""
    result = Calibration(
        0,
        {name: Range() for name in draft.ops},
        {op.name: ActivationRange() for op in draft.ops.values() if isinstance(op, Activation)},
    )
    readers = draft.consumers()
    ops = list(draft.ops.values())
    for batch in batches:
        if not np.isfinite(batch).all():
            raise DataError("a calibration batch contains values that are not finite")
        share = len(batch) / (result.images + len(batch))  # weight of this batch in the running means

        def observe(op: Op, value: np.ndarray, share: float = share) -> None:
            seen = result.values[op.name]
            largest = _largest(value)
            if not np.isfinite(largest):
                raise RangeError(
                    f"layer {op.name!r} ({type(op).__name__}): values are not finite for a calibration image. The "
                    "network's quadratics diverge: re-estimate its batch norms, fine-tune, or keep more ReLUs before"
                )
            seen.largest = max(seen.largest, largest)
            seen.square += share * (_mean_power(value[:SAMPLE], 2) - seen.square)
            for reader in readers[op.name]:
                if isinstance(reader, Activation):
                    _observe_activation(result.activations[reader.name], reader, value, share)

        with np.errstate(over="ignore", invalid="ignore"):  # reported by name above
            run_ops(ops, draft.parameters, batch, observe, np.float32)
        result.images += len(batch)
    if result.images == 0:
        raise DataError("no calibration images; give at least one batch, better a few hundred images")
    return result


def assume(draft: Draft, largest: float) -> Calibration:
    """Ranges nobody measured: every value reaches `largest`, mean square 1, as after batch norm."""
    activations = [op.name for op in draft.ops.values() if isinstance(op, Activation)]
    return Calibration(
        0,
        {name: Range(largest, 1.0) for name in draft.ops},
        {name: ActivationRange(largest, 1.0, 3.0) for name in activations},
    )


def _observe_activation(seen: ActivationRange, op: Activation, value: np.ndarray, share: float) -> None:
    flat = value.reshape(len(value), op.size)
    if op.kept_count:
        seen.kept_largest = max(seen.kept_largest, _largest(flat[:, op.kept]))
    if op.quad_count:
        quadratic = flat[:SAMPLE, op.quad_index]
        seen.quad_square += share * (_mean_power(quadratic, 2) - seen.quad_square)
        seen.quad_fourth += share * (_mean_power(quadratic, 4) - seen.quad_fourth)


def _largest(values: np.ndarray) -> float:
    return max(float(values.max()), -float(values.min()))


def _mean_power(values: np.ndarray, power: int) -> float:
    return float(np.mean(np.square(values, dtype=np.float64) ** (power // 2)))
