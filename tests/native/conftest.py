"""Every kernel test runs at each instruction-set level that this processor offers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autorep import _native


@pytest.fixture(params=["portable", "avx2-aesni", "avx2", "avx512", "neon"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """The active level, restored to the processor's best afterwards."""
    try:
        _native.set_simd(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    yield request.param
    _native.set_simd("auto")
