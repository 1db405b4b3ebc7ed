"""Comparing modes finds the layer where they part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autorep.compiler.compile import compile_program
from autorep.errors import ConfigError
from autorep.modes import compare
from tests.program.networks import Network, images, mask_


@pytest.fixture(scope="module")
def program():
    network = Network(["conv", "residual"])
    mask_(network, (0.3, 0.0, 1.0))
    return compile_program(network, images(8))


@pytest.mark.parametrize("modes", [("float", "fixed"), ("float", "secure"), ("fixed", "secure")])
def test_modes_of_a_sound_program_agree_in_every_layer(program, modes):
    compared = compare(program, images(2).numpy(), *modes)
    assert compared.first_bad is None
    assert [layer.layer for layer in compared.layers] == [op.name for op in program.ops]
    assert 0 < max(layer.difference for layer in compared.layers) < 0.05


def test_the_first_bad_layer_is_named(program):
    """A ring too narrow for one activation: that layer is the first that differs."""
    bad = "blocks.1.relu"
    narrow = tuple(dataclasses.replace(op, open_bits=34) if op.name == bad else op for op in program.ops)
    compared = compare(dataclasses.replace(program, ops=narrow), images(2).numpy())
    assert compared.first_bad is not None
    assert compared.first_bad.layer == bad


def test_unknown_mode_is_refused(program):
    with pytest.raises(ConfigError, match="did you mean 'fixed'"):
        compare(program, np.zeros((1, 3, 16, 16)), "float", "fixd")
