"""The numpy convolution against torch."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.program.windows import convolution, output_size, windows

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=40, deadline=None)
@given(
    groups=st.integers(1, 3),
    per_group=st.integers(1, 2),
    multiple=st.integers(1, 2),
    kernel=pairs,
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    batch=st.integers(1, 3),
)
def test_convolution_equals_torch(groups, per_group, multiple, kernel, stride, padding, dilation, batch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, groups * per_group, 9, 8))
    weight = rng.normal(size=(groups * multiple, per_group, *kernel))
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(x), torch.from_numpy(weight), None, stride, padding, dilation, groups
    ).numpy()
    result = convolution(x, weight, stride, padding, dilation, groups)
    np.testing.assert_allclose(result, expected, atol=1e-10)
    sizes = tuple(output_size(*args) for args in zip((9, 8), kernel, stride, padding, dilation))
    assert result.shape[2:] == sizes


def test_windows_pad_with_the_given_value():
    x = -np.ones((1, 1, 2, 2))
    assert windows(x, (3, 3), (2, 2), (1, 1), fill=-np.inf).max(axis=(4, 5)).item() == -1
