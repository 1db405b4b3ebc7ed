"""The native kernel against the plain torch path, which test_activation checks by itself."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autorep import _native
from autorep.replacement import MaskedActivation

LEVELS = ["portable", "avx2", "avx512"]
shapes = st.one_of(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 6), st.integers(1, 6)),
    st.tuples(st.integers(1, 4), st.integers(1, 40)),
    st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 9)),
)


def available(level: str) -> bool:
    """Whether this processor has the instruction set."""
    before = _native.simd()
    try:
        _native.set_simd(level)
    except ValueError:
        return False
    finally:
        _native.set_simd(before)
    return True


def results(
    site: MaskedActivation, z: Tensor, weight: Tensor, limit: float | None, native: bool, cut=math.inf, steep=math.inf
) -> list[Tensor]:
    """Output, range sum and all gradients of one forward and backward pass."""
    z = z.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    site.zero_grad()
    run = MaskedActivation.one_pass if native else MaskedActivation.reference
    x, range_sum = run(site, z, limit, cut, steep)
    loss = (x.float() * weight).sum() + (
        0.0 if range_sum is None else (range_sum * torch.linspace(0.3, 0.7, len(z))).sum()
    )
    loss.backward()
    grads = [z.grad, site.coefficients.grad] + ([site.aux.grad] if site.aux.requires_grad else [])
    found = [x.detach(), *(g.clone() for g in grads if g is not None)]
    return found if range_sum is None else [*found, range_sum.detach()]


@pytest.mark.parametrize("level", LEVELS)
@settings(max_examples=40, deadline=None)
@given(
    shape=shapes,
    half=st.booleans(),
    channels_last=st.booleans(),
    degree=st.integers(1, 2),
    activation=st.sampled_from(["relu", "relu6"]),
    granularity=st.sampled_from(["channel", "layer"]),
    limit=st.sampled_from([None, 1.0]),
    cut=st.sampled_from([math.inf, 1.5]),
    steep=st.sampled_from([math.inf, 0.4]),
    state=st.sampled_from(["learning", "frozen", "gates"]),
    seed=st.integers(0, 1000),
)
def test_native_kernel_equals_the_torch_path(
    level, shape, half, channels_last, degree, activation, granularity, limit, cut, steep, state, seed
) -> None:
    if not available(level):
        pytest.skip(f"this processor has no {level}")
    torch.manual_seed(seed)
    site = MaskedActivation(shape[1:], activation=activation, degree=degree, granularity=granularity)
    site.set_moments_(torch.randn_like(site.mean), 0.3 + torch.rand_like(site.std))
    site.mask.copy_(torch.randint(0, 2, shape[1:]))
    if state == "frozen":
        site.freeze_()
    if state == "gates":
        site.soft = True
        site.aux.data.uniform_()
    z = (3 * torch.randn(shape)).to(torch.bfloat16 if half else torch.float32)
    if channels_last and z.dim() == 4:
        z = z.to(memory_format=torch.channels_last)
    weight = torch.randn(shape).to(z.dtype).float()
    before = _native.simd()
    _native.set_simd(level)
    try:
        got = results(site, z, weight, limit, native=True, cut=cut, steep=steep)
    finally:
        _native.set_simd(before)
    want = results(site, z, weight, limit, native=False, cut=cut, steep=steep)
    assert got[0].dtype == z.dtype
    assert got[0].stride() == z.stride() or got[0].numel() == 1
    # bfloat16 keeps 8 bits; both paths compute in float32 and round once.
    tolerance = 1e-2 if half else 2e-5
    for mine, theirs in zip(got, want, strict=True):
        scale = float(theirs.float().abs().max()) + 0.05  # differences of numbers near 1 may be small themselves
        assert float((mine.float() - theirs.float()).abs().max()) <= tolerance * scale


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_two_threads_give_the_same_as_one(layout) -> None:
    site = MaskedActivation((24, 17, 17))
    site.mask.copy_(torch.randint(0, 2, site.mask.shape))
    z = torch.randn(16, 24, 17, 17).to(memory_format=layout)
    weight = torch.randn(z.shape)
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(results(site, z, weight, 1.0, native=True))
    torch.set_num_threads(before)
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_a_strided_view_and_a_broadcast_gradient_are_handled() -> None:
    site = MaskedActivation((4, 3, 3))
    site.mask.copy_(torch.randint(0, 2, site.mask.shape))
    z = torch.randn(2, 8, 3, 3)[:, ::2].requires_grad_()
    site(z).sum().backward()
    got = site.aux.grad.clone()
    site.zero_grad()
    site.reference(z)[0].sum().backward()
    torch.testing.assert_close(got, site.aux.grad)


def test_not_a_number_passes_through() -> None:
    site = MaskedActivation((2,))
    site.mask.copy_(torch.tensor([1, 0]))
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.isnan(site(torch.full((1, 2), torch.nan, dtype=dtype))).all()


def test_what_the_kernel_does_not_know_goes_to_torch() -> None:
    z = torch.zeros(1, 2)
    assert MaskedActivation((2,)).fits_kernel(z)
    assert not MaskedActivation((2,)).fits_kernel(z.double())
    assert not MaskedActivation((2,), degree=3).fits_kernel(z)
    assert not MaskedActivation((2,), activation="silu").fits_kernel(z)


def test_threads_of_its_own_where_no_openmp_is_loaded() -> None:
    """Without torch in the process the kernel starts its own threads, with the same result."""
    script = """
import sys
import numpy as np
from autorep._native import _core
random = np.random.default_rng(0)
images, channels, positions = 8, 24, 300
z = random.standard_normal((images, channels, positions), np.float32)
mask = random.integers(0, 2, (channels, positions)).astype(np.uint8)
mean, std = np.zeros(channels, np.float32), np.ones(channels, np.float32)
coefficients = random.standard_normal((3, channels), np.float32)
found = []
for threads in (1, 3):
    x, total = np.empty_like(z), np.empty(images, np.float32)
    site = [mask.ctypes.data, 0, *(a.ctypes.data for a in (mean, std, coefficients))]
    sizes = (images, channels, positions, channels, 2)
    limits, addresses = (6.0, 1.0, 9.0, 2.0), [a.ctypes.data for a in (z, x, total)]
    _core.masked_forward(*site, *sizes, False, False, *limits, threads, *addresses)
    found.append((x, total))
assert "torch" not in sys.modules
assert (found[0][0] == found[1][0]).all() and (found[0][1] > 0).all()
assert (abs(found[0][1] - found[1][1]) < 1e-5 * found[0][1]).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=250)
