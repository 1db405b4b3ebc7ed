"""The guard: a compiled program must compute what the torch model computes, on every calibration image.

A difference beyond rounding means that the program is of another network (a rule that is wrong, a forward that
changes from call to call), and is refused with the first layer that differs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from autorep.compiler.draft import Draft
from autorep.compiler.export import arguments, named_leaves
from autorep.compiler.ranges import Calibration
from autorep.compiler.trace import Traced
from autorep.errors import RangeError, TraceError
from autorep.program.fixed import NearestRounding, run_fixed
from autorep.program.floating import run_ops
from autorep.program.ir import Program

TOLERANCE = 1e-4  # of the largest logit: beyond it, rounding must be shown to be the cause
ROUNDING = 30  # times the difference between the model in float32 and in float64 is rounding …
LARGEST_ROUNDING = 0.01  # … but not more than this share of the largest logit
PRECISION_IMAGES = 4
NORMAL_QUARTILES = 1.349  # standard deviations between the quartiles of a normal distribution
SMALL_ERROR, LARGE_ERROR = 0.02, 0.25  # of a typical image's largest logit, in fixed point

_UNSTEADY = (
    "does not compute what torch.export wrote down of it: its forward gives another answer from call to call, or for "
    "another batch size. Make it depend on its input and its parameters alone"
)
_MORE_PRECISION = (
    "`autorep compare` shows where; remedies: set aside images that reach much further than the others (outliers), "
    "batch norm or a range penalty, so that values neither vanish nor explode, fewer quadratics in a row or flatter "
    "ones (a smaller curve), a smaller margin"
)

Prepare = Callable[[np.ndarray], np.ndarray]  # calibration images as the model takes them


@torch.no_grad()
def check_same(
    model: nn.Module,
    draft: Draft,
    batches: Sequence[np.ndarray],
    prepare: Prepare,
    calibration: Calibration,
    trace_again: Callable[[], Traced],
) -> None:
    """Refuse a draft whose answers are not the model's, on the images that calibration used.

    Arguments:
        model: in evaluation mode.
        draft: folded, as widths will be chosen for it.
        prepare: what stands between a calibration image and the model (normalisation).
        trace_again: the draft as it came from the model, to find where they part.
    """
    first = prepare(batches[0][:2])
    if not np.array_equal(_answers(model, first), _answers(model, first), equal_nan=True):
        raise TraceError(f"{type(model).__name__} {_UNSTEADY}")
    start = 0
    for batch in batches:
        part = slice(start, start + len(batch))
        start += len(batch)
        used, ours = calibration.used[part], calibration.answers[part]
        if not used.any():
            continue
        expected = _answers(model, prepare(batch))
        if expected.shape != ours.shape:
            raise TraceError(f"the model answers in shape {expected.shape}, the program in shape {ours.shape}")
        worst = _furthest(expected[used], ours[used])
        if worst is None:
            continue
        image = batch[used][worst : worst + 1]
        if not _is_rounding(model, draft, image, prepare(image)):
            _refuse(model, trace_again(), prepare(image))


def check_precision(program: Program, batches: Sequence[np.ndarray], calibration: Calibration) -> float:
    """How far fixed point is off, as a share of a typical image's largest logit; warns when that is not small.

    Refuses a plan whose fixed-point answers are useless: off by more than the images differ among themselves.

    Run on a few of the images that calibration used, rounded to nearest; a small share of the logits is always allowed,
    a large one never. What the logits are and how they differ is taken from the middle half of the images: one image
    that explodes takes the bits of all the others, and must not excuse that.
    """
    used = np.flatnonzero(calibration.used)
    answers = calibration.answers[used].astype(np.float64).reshape(len(used), -1)
    reach = np.abs(answers).max(axis=1)
    chosen = np.linspace(0, len(used) - 1, min(PRECISION_IMAGES, len(used))).astype(int)
    starts = np.cumsum([0, *(len(batch) for batch in batches)])
    owners = np.searchsorted(starts, used[chosen], side="right") - 1
    images = np.stack([batches[owner][number - starts[owner]] for owner, number in zip(owners, used[chosen])])
    fixed = run_fixed(program, images, NearestRounding()).reshape(len(chosen), -1)
    off = np.abs(fixed - answers[chosen]).max(axis=1)
    typical = float(np.median(reach))
    error = float((off * np.minimum(1.0, typical / np.maximum(reach[chosen], 1e-30))).max())
    spread = float(np.subtract(*np.quantile(answers, (0.75, 0.25), axis=0)).max()) / NORMAL_QUARTILES
    found = (
        f"fixed point is off by {error:.3g} where a typical image's largest logit is {typical:.3g} and logits spread "
        f"by {spread:.3g} between calibration images, of which the furthest reaches {reach.max():.3g}"
    )
    if error > LARGE_ERROR * typical or (error > SMALL_ERROR * typical and error > spread):
        raise RangeError(f"{found}. {_MORE_PRECISION}")
    if error > SMALL_ERROR * typical:
        warnings.warn(f"{found}: classes that lie nearer may be mixed up. {_MORE_PRECISION}", stacklevel=3)
    return error / max(typical, 1e-30)


def _furthest(expected: np.ndarray, ours: np.ndarray) -> int | None:
    """The image that differs most, or None when all agree."""
    with np.errstate(invalid="ignore"):
        difference = np.abs(expected - ours).reshape(len(ours), -1).max(axis=1)
    difference = np.nan_to_num(difference, nan=np.inf)
    worst = int(difference.argmax())
    largest = max(float(np.abs(expected).max()), 1e-30)
    return worst if difference[worst] > TOLERANCE * largest else None


def _is_rounding(model: nn.Module, draft: Draft, images: np.ndarray, prepared: np.ndarray) -> bool:
    """Whether in float64 the two agree as well as the model agrees with itself in float32."""
    once, again = _answers(model, prepared), _answers(model, prepared)
    exact = _answers(copy.deepcopy(model).double(), prepared)
    rounding, largest = float(np.abs(once - exact).max()), float(np.abs(exact).max())
    allowed = max(TOLERANCE * largest, min(ROUNDING * rounding, LARGEST_ROUNDING * largest))
    difference = float(np.abs(_run(draft, images, np.float64) - exact).max())
    return np.array_equal(once, again) and difference <= allowed


def _answers(model: nn.Module, images: np.ndarray) -> np.ndarray:
    parameter = next(model.parameters(), torch.empty(0))
    answer = model(torch.from_numpy(images).to(parameter.device, parameter.dtype))
    if not isinstance(answer, Tensor):
        rows = [value.reshape(len(images), -1) for value in named_leaves(answer).values() if value is not None]
        answer = torch.cat(rows, 1)
    return answer.detach().cpu().double().numpy()


def _run(draft: Draft, images: np.ndarray, dtype: type) -> np.ndarray:
    with np.errstate(all="ignore"):
        return run_ops(list(draft.ops.values()), draft.parameters, images, dtype=dtype)


def _refuse(model: nn.Module, traced: Traced, image: np.ndarray) -> None:
    """Raise TraceError naming the first layer whose value differs."""
    pair = np.concatenate([image, image])
    expected = _graph_values(traced, torch.from_numpy(pair))
    ours: dict[str, np.ndarray] = {}
    run_ops(
        list(traced.draft.ops.values()),
        traced.draft.parameters,
        pair,
        lambda op, value: ours.update({op.name: value}),
        np.float64,
    )
    for node, value in expected.items():
        mine = ours.get(traced.results.get(node, ""))
        if mine is not None and _furthest(value, mine.reshape(value.shape)) is not None:
            graph = traced.graph
            raise TraceError(
                f"the program would not compute what the model does: the first layer that differs is "
                f"{graph.path(node)} ({graph.operation(node)}, {graph.source(node)}), by "
                f"{np.abs(value - mine.reshape(value.shape)).max():.3g} where the largest value is "
                f"{np.abs(value).max():.3g}. Please report this layer; until then write it with other operations"
            )
    raise TraceError(f"{type(model).__name__} {_UNSTEADY}")


def _graph_values(traced: Traced, images: Tensor) -> dict[fx.Node, np.ndarray]:
    """Every call of the exported graph on two images, in float64, by torch."""
    values: dict[fx.Node, Any] = {}
    seen: dict[fx.Node, np.ndarray] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            constant = images if node.name == traced.graph.image else traced.graph.constants.get(node.name)
            floating = isinstance(constant, Tensor) and constant.is_floating_point()
            values[node] = constant.cpu().double() if constant is not None and floating else constant
        elif node.op == "call_function" and node.meta.get("val") is not None:
            args, kwargs = arguments(node, values)
            if node.target is torch.ops.autorep.masked_activation.default:
                values[node] = traced.sites[args[1]].reference(args[0])[0].double()
            else:
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]  # call_function
            value = values[node]
            if isinstance(value, Tensor) and value.is_floating_point():
                seen[node] = value.double().numpy()
    return seen
