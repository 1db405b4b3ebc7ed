"""The masked activation on a CPU in one native pass forward and one backward.

Written out in torch operations, a site reads and writes each activation about twenty times a step; the native kernel
reads Z, writes X, and later reads Z and dL/dX and writes dL/dZ, with the gradients of mask and polynomial gathered
on the way. float32 and bfloat16, channels first or channels last.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from autorep._native import _core
from autorep.replacement.indicator import surrogate_slope


def usable(z: Tensor) -> bool:
    """Whether the native kernel takes such an input; CUDA and torch.compile do without."""
    return z.device.type == "cpu" and z.dtype in (torch.float32, torch.bfloat16) and not torch.compiler.is_compiling()


class FusedActivation(torch.autograd.Function):
    """Calls the native kernel; Z is all it saves per image."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        aux: Tensor,
        coefficients: Tensor,
        mask: Tensor,
        mean: Tensor,
        std: Tensor,
        surrogate: str | None,
        limits: tuple[float, float, float, float],
    ) -> tuple[Tensor, Tensor]:
        """surrogate: reading of the gradient that aux gets in the mask's place; None where aux is itself a gate."""
        z, last = _laid_out(z)
        site = [tensor.contiguous() for tensor in (mask, mean, std, coefficients)]
        gate = aux.detach().contiguous() if surrogate is None else None
        x, range_sum = torch.empty_like(z), torch.empty(len(z))
        _core.masked_forward(*_common(z, site, gate, last, limits), z.data_ptr(), x.data_ptr(), range_sum.data_ptr())
        ctx.save_for_backward(z, aux, *site)
        ctx.last, ctx.surrogate, ctx.limits = last, surrogate, limits
        return x, range_sum

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, x_grad: Tensor, range_grad: Tensor) -> tuple[Tensor | None, ...]:
        z, aux, *site = ctx.saved_tensors
        x_grad = _laid_out_like(x_grad.to(z.dtype), z, ctx.last)
        range_grad = range_grad.contiguous()
        z_grad = torch.empty_like(z)
        gate = aux.detach().contiguous() if ctx.surrogate is None else None
        aux_grad = torch.empty(aux.shape) if ctx.needs_input_grad[1] else None
        coefficient_grad = torch.empty(site[-1].shape)
        _core.masked_backward(
            *_common(z, site, gate, ctx.last, ctx.limits),
            z.data_ptr(),
            x_grad.data_ptr(),
            range_grad.data_ptr(),
            z_grad.data_ptr(),
            0 if aux_grad is None else aux_grad.data_ptr(),
            coefficient_grad.data_ptr(),
        )
        if aux_grad is not None and ctx.surrogate is not None:  # so far of the mask
            aux_grad *= surrogate_slope(aux, ctx.surrogate)
        return z_grad, aux_grad, coefficient_grad, None, None, None, None, None


def _common(
    z: Tensor, site: list[Tensor], gate: Tensor | None, last: bool, limits: tuple[float, float, float, float]
) -> tuple[Any, ...]:
    """What both kernels are told first: the site's tensors (mask, mean, std, coefficients), sizes, layout, limits."""
    rows, polynomials = site[-1].shape
    mask, *others = (tensor.data_ptr() for tensor in site)
    return (
        mask,
        0 if gate is None else gate.data_ptr(),
        *others,
        z.shape[0],
        z.shape[1],
        math.prod(z.shape[2:]),
        polynomials,
        rows - 1,
        last,
        z.dtype == torch.bfloat16,
        *limits,
        torch.get_num_threads(),
    )


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
