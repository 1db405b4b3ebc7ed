"""What a replaced network is measured for: exact moments of every site's input, and each element's sensitivity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from autorep.errors import DataError
from autorep.replacement.activation import MaskedActivation

Moment = Literal["rms", "mean", "size"]
Batches = Iterable[Any]  # what a loader gives, see `prepared`


def all_reduce_(value: Tensor) -> Tensor:
    """Sum over the processes of a torch.distributed run; unchanged outside of one."""
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(value)
    return value


def process_count() -> int:
    """Processes of a torch.distributed run; 1 outside of one."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process_rank() -> int:
    """This process's number in a torch.distributed run; 0 outside of one."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


@torch.no_grad()
def exact_moments(
    model: nn.Module, sites: Mapping[str, MaskedActivation], batches: Batches
) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and standard deviation of every site's input over all batches and processes, float64, in one pass.

    The model runs in evaluation mode, so that the moments are those of the network as it is deployed.
    """
    sums: dict[str, Tensor] = {}  # rows: count, mean, sum of squared deviations

    def follow(name: str, site: MaskedActivation) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def before(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            batch = _batch_moments(args[0], site.granularity)
            sums[name] = _merge(sums[name], batch) if name in sums else batch

        return before

    with evaluating(model):
        handles = [site.register_forward_pre_hook(follow(name, site)) for name, site in sites.items()]
        try:
            for images, *_ in prepared(batches, model):
                model(images)
        finally:
            for handle in handles:
                handle.remove()
    _require(sums, sites)
    return {name: _over_processes(sums[name]) for name in sites}


def sensitivity(
    model: nn.Module,
    sites: Mapping[str, MaskedActivation],
    batches: Batches,
    loss_fn: Callable[..., Tensor],
    moment: Moment = "rms",
) -> dict[str, Tensor]:
    """E[((activation − poly)·dL/dX)²]^½ of every element, over all images and processes, float64.

    With moment "size" it is E|(activation − poly)·dL/dX| instead, with "mean" |E[(activation − poly)·dL/dX]|, in which
    images that disagree cancel. L is one image's own loss: loss_fn(outputs, *rest of the batch) must be the mean over
    the batch. It is the first-order change of the loss when that element alone is replaced. Parameters and their .grad
    stay untouched.
    """
    totals = {
        name: torch.zeros(site.mask.shape, dtype=torch.float64, device=site.mask.device) for name, site in sites.items()
    }
    images = 0
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def follow(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def after(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = (args[0], output)

        return after

    with evaluating(model), torch.enable_grad():
        handles = [site.register_forward_hook(follow(name)) for name, site in sites.items()]
        try:
            for x, *rest in prepared(batches, model):
                # A leaf that requires grad, so that networks with frozen weights work too.
                loss = loss_fn(model(x.detach().clone().requires_grad_()), *rest)
                names = list(seen)
                gradients = torch.autograd.grad(loss, [seen[name][1] for name in names])
                for name, gradient in zip(names, gradients):
                    change = _change(sites[name], seen[name][0], gradient * x.shape[0])
                    part = {"rms": torch.square, "mean": torch.positive, "size": torch.abs}[moment](change)
                    totals[name] += part.sum(dim=0, dtype=torch.float64)
                images += x.shape[0]
                seen.clear()
        finally:
            for handle in handles:
                handle.remove()
    count = all_reduce_(torch.tensor(float(images), dtype=torch.float64, device=next(iter(totals.values())).device))
    if not count:
        raise DataError("no batch to measure sensitivity on; pass at least one (images, targets) batch")
    means = {name: all_reduce_(total) / count for name, total in totals.items()}
    return {name: mean.sqrt() if moment == "rms" else mean.abs() for name, mean in means.items()}


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every module's own mode again afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def inputs_of(batch: Tensor | tuple[Any, ...] | list[Any]) -> tuple[Tensor, tuple[Any, ...]]:
    """(images, everything else) of a batch that is a tensor or a sequence starting with one."""
    if isinstance(batch, Tensor):
        return batch, ()
    return batch[0], tuple(batch[1:])


def prepared(batches: Batches, model: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Batches as a loader gives them, as (images, …) on the model's device and in its precision.

    A batch is images, or a sequence that starts with them; tensors or numpy arrays. One array alone is one batch.
    """
    if isinstance(batches, Tensor | np.ndarray):
        batches = [batches]
    like = next(model.parameters(), torch.empty(0))
    for batch in batches:
        parts = tuple(batch) if isinstance(batch, tuple | list) and batch else (batch,)
        moved = (part.to(like.device) if isinstance(part, Tensor) else part for part in map(as_tensor, parts[1:]))
        yield images_of(parts[0], like), *moved


def as_tensor(value: Any) -> Any:
    """A numpy array as a tensor; everything else as it is."""
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def images_of(value: Any, like: Tensor) -> Tensor:
    """Images on the device and in the precision of a model's weights; what cannot be images is refused by name."""
    value = as_tensor(value)
    if isinstance(value, Mapping):
        raise DataError(
            f"a batch is a dictionary with {', '.join(map(repr, value))}; give the images alone, for example "
            f"(batch[{next(iter(value), 'images')!r}] for batch in loader)"
        )
    if not isinstance(value, Tensor):
        raise DataError(
            f"a batch is of type {type(value).__name__}; give image tensors or arrays (N, channels, rows, columns), or "
            "(images, labels) as a data loader does"
        )
    if not value.is_floating_point():
        raise DataError(
            f"images are {str(value.dtype).removeprefix('torch.')}; give floating-point numbers, scaled and normalised "
            "as in training"
        )
    return value.to(like.device, like.dtype if like.is_floating_point() else None)


@torch.no_grad()
def _change(site: MaskedActivation, z: Tensor, gradient: Tensor) -> Tensor:
    """First-order change of each image's loss when each of the site's elements alone is replaced."""
    z = z.detach().float()
    return (site.keep(z) - site.poly(z)) * gradient.float()


def _batch_moments(z: Tensor, granularity: str) -> Tensor:
    columns = z.detach().double()
    columns = columns.transpose(0, 1).flatten(1) if granularity == "channel" else columns.reshape(1, -1)
    variance, mean = torch.var_mean(columns, dim=1, correction=0)
    count = torch.full_like(mean, columns.shape[1])
    return torch.stack([count, mean, variance * count])


def _merge(one: Tensor, other: Tensor) -> Tensor:
    """Moments of the union of two samples, without the cancellation of a difference of squares."""
    count = one[0] + other[0]
    delta = other[1] - one[1]
    mean = one[1] + delta * other[0] / count
    return torch.stack([count, mean, one[2] + other[2] + delta.square() * one[0] * other[0] / count])


def _over_processes(own: Tensor) -> tuple[Tensor, Tensor]:
    count, mean, squares = own
    total = all_reduce_(count.clone())
    common = all_reduce_(count * mean) / total
    deviation = all_reduce_(squares + count * (mean - common).square())
    return common, (deviation / total).sqrt()


def _require(found: Mapping[str, Tensor], sites: Mapping[str, MaskedActivation]) -> None:
    missing = [name for name in sites if name not in found]
    if missing:
        raise DataError(
            f"calibration saw no input at {', '.join(missing[:3])}: pass at least one batch, and a model that runs"
            " through every replaced activation"
        )
