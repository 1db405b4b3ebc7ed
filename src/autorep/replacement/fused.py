"""The masked activation on a CPU in one native pass forward and one backward.

Written out in torch operations, a site reads and writes each activation about twenty times a step; the native kernel
reads Z, writes X, and later reads Z and dL/dX and writes dL/dZ, with the gradients of mask and polynomial gathered
on the way. float32 and bfloat16, channels first or channels last.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autorep._native import _core
from autorep.replacement.dapa import CAP
from autorep.replacement.indicator import surrogate_slope

if TYPE_CHECKING:
    from autorep.replacement.activation import MaskedActivation


def usable(site: MaskedActivation, z: Tensor) -> bool:
    """Whether the native kernel can run this site; otherwise (CUDA, torch.compile, degree 3 …) torch does."""
    return (
        z.device.type == "cpu"
        and z.dtype in (torch.float32, torch.bfloat16)
        and site.degree <= 2
        and site.activation != "silu"
        and not torch.compiler.is_compiling()
    )


def masked_activation(
    site: MaskedActivation, z: Tensor, range_limit: float | None, input_limit: float
) -> tuple[Tensor, Tensor | None]:
    """X of the site at z, and the sum of the range penalty when a limit is given; same as `site.reference`."""
    terms = site.terms()
    if site.degree == 1:
        terms = torch.cat([terms, torch.zeros_like(terms[:1])])
    cap = CAP if site.activation == "relu6" else math.inf
    limit = math.inf if range_limit is None else range_limit
    numbers = torch.stack([site.mean, site.std.reciprocal(), *site.held_between(input_limit)])
    wide = (terms.expand(-1, site.channels), site.mask, numbers.expand(-1, site.channels))
    x, range_sum = _MaskedActivation.apply(z, site.aux, *wide, site.surrogate, cap, limit)
    return x, None if range_limit is None else range_sum


class _MaskedActivation(torch.autograd.Function):
    """Calls the native kernel; Z is all it saves per image."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        aux: Tensor,
        terms: Tensor,
        mask: Tensor,
        fixed: Tensor,
        surrogate: str,
        cap: float,
        limit: float,
    ) -> tuple[Tensor, Tensor]:
        z, last = _laid_out(z)
        image_mask = _image_layout(mask, last)
        numbers = torch.cat([fixed[:2], terms, fixed[2:]])  # in the order the kernel reads them
        x = torch.empty_like(z)
        total = _core.masked_forward(
            z.data_ptr(),
            x.data_ptr(),
            image_mask.data_ptr(),
            numbers.data_ptr(),
            *_sizes(z),
            last,
            z.dtype == torch.bfloat16,
            cap,
            limit,
            torch.get_num_threads(),
        )
        ctx.save_for_backward(z, aux, image_mask, numbers)
        ctx.last, ctx.surrogate, ctx.cap, ctx.limit = last, surrogate, cap, limit
        return x, torch.tensor(total, dtype=torch.float32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, x_grad: Tensor, range_grad: Tensor) -> tuple[Tensor | None, ...]:
        z, aux, image_mask, numbers = ctx.saved_tensors
        x_grad = _laid_out_like(x_grad.to(z.dtype), z, ctx.last)
        z_grad = torch.empty_like(z)
        mask_grad = torch.zeros(image_mask.shape) if ctx.needs_input_grad[1] else None
        terms_grad = torch.empty(3, z.shape[1])
        _core.masked_backward(
            z.data_ptr(),
            x_grad.data_ptr(),
            z_grad.data_ptr(),
            image_mask.data_ptr(),
            numbers.data_ptr(),
            0 if mask_grad is None else mask_grad.data_ptr(),
            terms_grad.data_ptr(),
            *_sizes(z),
            ctx.last,
            z.dtype == torch.bfloat16,
            ctx.cap,
            ctx.limit,
            float(range_grad),
            torch.get_num_threads(),
        )
        aux_grad = None
        if mask_grad is not None:
            by_channel = mask_grad.movedim(-1, 0) if ctx.last else mask_grad
            aux_grad = by_channel * surrogate_slope(aux, ctx.surrogate)
        return z_grad, aux_grad, terms_grad, None, None, None, None, None


def _laid_out(z: Tensor) -> tuple[Tensor, bool]:
    """z itself where its memory is in order, and whether channels come last there; otherwise a contiguous copy."""
    if math.prod(z.shape[2:]) == 1:  # one position per channel: the channels lie side by side
        return z.contiguous(), True
    if z.is_contiguous():
        return z, False
    if z.dim() == 4 and z.is_contiguous(memory_format=torch.channels_last):
        return z, True
    return z.contiguous(), False


def _laid_out_like(gradient: Tensor, z: Tensor, last: bool) -> Tensor:
    layout = torch.channels_last if last and z.dim() == 4 else torch.contiguous_format
    return gradient.contiguous(memory_format=layout)


def _image_layout(mask: Tensor, last: bool) -> Tensor:
    """One image's mask in the memory order of the batch, as the kernel reads it."""
    return (mask.movedim(0, -1) if last else mask).to(torch.int32, memory_format=torch.contiguous_format)


def _sizes(z: Tensor) -> tuple[int, int, int]:
    return z.shape[0], z.shape[1], math.prod(z.shape[2:])
