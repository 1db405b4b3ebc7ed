"""Well-known classifiers from their ordinary definitions: float = torch, fixed within its bound, secure = fixed."""

from __future__ import annotations

import pytest
import torch

from autorep.compiler.compile import compile_program
from tests.compiler.architectures import ARCHITECTURES
from tests.compiler.test_corpus import assert_right
from tests.program.networks import images, settle_

SHAPE = (3, 32, 32)


@pytest.mark.parametrize("build", ARCHITECTURES, ids=lambda build: build.__name__)
def test_an_architecture_is_right_in_every_mode(build):
    torch.manual_seed(0)
    network, x = build(), images(8, shape=SHAPE)
    settle_(network, x)
    assert_right(compile_program(network, x), network, x[:2], fixed_tolerance=0.02)
