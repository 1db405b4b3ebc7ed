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
from autorep.errors import AutorepError, RangeError, TraceError
from autorep.program.fixed import NearestRounding, run_fixed
from autorep.program.floating import run_ops
from autorep.program.ir import Program
from autorep.program.rounding import rounding_bound
from autorep.replacement.chance import refusing_chance

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
    _check_steady(model, prepare(batches[0][:2]))
    sizes = tuple(draft.outputs.values())
    start = 0
    for batch in batches:
        part = slice(start, start + len(batch))
        start += len(batch)
        used, ours = calibration.used[part], calibration.answers[part]
        if not used.any():
            continue
        prepared = prepare(batch)
        expected = _answers(model, prepared)
        if expected.shape != ours.shape:
            raise TraceError(f"the model answers in shape {expected.shape}, the program in shape {ours.shape}")
        worst = _furthest(expected[used], ours[used], sizes)
        if worst is None:
            continue
        place = int(np.flatnonzero(used)[worst])
        if not _is_rounding(model, draft, batch, prepared, place, sizes):
            _refuse(model, trace_again(), prepared[place : place + 1])


def check_precision(
    program: Program, batches: Sequence[np.ndarray], calibration: Calibration
) -> tuple[float, float | None]:
    """How far fixed point is off and may be off, as shares of a typical image's largest logit.

    Warns when the former is not small. Refuses a program whose fixed-point answers are useless, off by more than the
    images differ among themselves, and one that is off by more than rounding explains (`program.rounding`).

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
    bound = rounding_bound(program, images)
    if bound is not None:
        _check_bound(program, images, fixed, bound.reshape(fixed.shape))
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
    typical = max(typical, 1e-30)
    return error / typical, None if bound is None else float(bound.max()) / typical


def _check_bound(program: Program, images: np.ndarray, fixed: np.ndarray, bound: np.ndarray) -> None:
    """Refuse fixed-point answers that are further from the float ones than rounding can bring them."""
    exact = run_ops(program.ops, program.parameters, images).reshape(fixed.shape)
    off, smallest = np.abs(fixed - exact), 2.0**-program.output.frac
    if (off > bound + smallest).any():
        worst = np.unravel_index(np.argmax(off - bound), off.shape)
        raise RangeError(
            f"fixed point is off by {off[worst]:.3g} where its rounding explains {bound[worst]:.3g} at most: some "
            f"layer goes wrong in fixed point, which `autorep compare` shows. Please report it; {_MORE_PRECISION}"
        )


def _check_steady(model: nn.Module, images: np.ndarray) -> None:
    """Refuse a model that answers otherwise when asked again, or when an image is alone in its batch, or by chance."""
    together = _answers(model, images)
    with refusing_chance(model):
        steady = np.array_equal(together, _answers(model, images), equal_nan=True)
        if steady and _furthest(together[:1], _answers(model, images[:1])) is not None:
            exact = copy.deepcopy(model).double()  # the same sums in another order may round otherwise
            steady = _furthest(_answers(exact, images)[:1], _answers(exact, images[:1])) is None
    if not steady:
        raise TraceError(f"{type(model).__name__} {_UNSTEADY}")


def _parts(answers: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Each output of a model that has several by itself: they may be of very different size."""
    return np.split(answers, np.cumsum(sizes)[:-1], axis=-1) if sizes else [answers]


def _furthest(expected: np.ndarray, ours: np.ndarray, sizes: Sequence[int] = ()) -> int | None:
    """The image that differs most in one output of these sizes, or None when all agree."""
    worst: tuple[float, int] = (TOLERANCE, -1)
    for theirs, own in zip(_parts(expected, sizes), _parts(ours, sizes)):
        with np.errstate(invalid="ignore"):
            difference = np.abs(theirs - own).reshape(len(own), -1).max(axis=1)
        share = np.nan_to_num(difference, nan=np.inf) / max(float(np.abs(theirs).max()), 1e-30)
        worst = max(worst, (float(share.max()), int(share.argmax())))
    return None if worst[1] < 0 else worst[1]


def _is_rounding(
    model: nn.Module, draft: Draft, batch: np.ndarray, prepared: np.ndarray, place: int, sizes: Sequence[int]
) -> bool:
    """Whether in float64 the two agree on the image at `place` as well as the model agrees with itself in float32.

    The model is asked with the whole batch, as it was when the two differed: its answer may depend on the batch's size.
    """
    image = slice(place, place + 1)
    once = _answers(model, prepared)[image]
    exact = _answers(copy.deepcopy(model).double(), prepared)[image]
    ours = _run(draft, batch[image], np.float64)
    for rounded, theirs, own in zip(_parts(once, sizes), _parts(exact, sizes), _parts(ours, sizes)):
        rounding, largest = float(np.abs(rounded - theirs).max()), float(np.abs(theirs).max())
        allowed = max(TOLERANCE * largest, min(ROUNDING * rounding, LARGEST_ROUNDING * largest))
        if not float(np.abs(own - theirs).max()) <= allowed:
            return False
    return np.array_equal(once, _answers(model, prepared)[image])


def _answers(model: nn.Module, images: np.ndarray) -> np.ndarray:
    parameter = next(model.parameters(), torch.empty(0))
    copied = torch.tensor(images, device=parameter.device, dtype=parameter.dtype)  # which the model may change
    try:
        answer = model(copied)
    except AutorepError:
        raise
    except Exception as error:  # whatever the user's forward raises
        raise TraceError(
            f"{type(model).__name__} itself fails on a batch of {len(images)}, although torch.export follows it: "
            f"{type(error).__name__}: {error}"
        ) from error
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
