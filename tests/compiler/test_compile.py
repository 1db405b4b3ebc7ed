"""Compiled programs against torch, in float and in fixed point."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import nn

from autorep import models
from autorep.compiler.compile import compile_program, sketch_program
from autorep.errors import ConfigError, DataError, UnsupportedOpError
from autorep.mpc.local import LocalPair
from autorep.program.fixed import FixedProgram, NearestRounding
from autorep.program.ir import Activation, Affine, Conv, Requantize
from autorep.replacement import replace_activations_
from tests.mpc.programs import DealtRounding, run_known
from tests.program.networks import BLOCKS, Network, images, mask_, networks, settle_

# Fixed point against float: rounding at 16 fractional bits, amplified by a few layers; relative to the largest logit.
FIXED_TOLERANCE = 0.02
SEEDS = (b"\x01" * 32, b"\x02" * 32)  # of a dealer whose masks the test knows


def torch_logits(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return model(x).double().numpy()


@settings(max_examples=15, deadline=None)
@given(networks())
def test_random_networks_equal_torch(network):
    compare_in_every_mode(network)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=300, deadline=None)
@given(networks())
def test_many_random_networks_equal_torch(network):
    compare_in_every_mode(network)


def compare_in_every_mode(network: nn.Module) -> None:
    x = images(32, 1)
    program = compile_program(network, [x[:16], x[16:]])
    expected = torch_logits(network, x[:6])
    largest = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(program.run(x[:6].numpy()), expected, atol=1e-5 * largest)
    assert np.abs(program.run(x[:6].numpy(), "fixed") - expected).max() < FIXED_TOLERANCE * largest
    with LocalPair(program) as pair:
        secure = run_known(pair, x[:2].numpy(), SEEDS)
    fixed = FixedProgram(program).run(x[:2].numpy(), DealtRounding(pair.dealer, SEEDS, 2))
    np.testing.assert_array_equal(secure, fixed)


@pytest.mark.parametrize("kind", [*BLOCKS, "hard gate"])
def test_every_block_alone_equals_torch(kind):
    network, x = Network([kind]), images(16)
    program = compile_program(network, x)
    expected = torch_logits(network, x)
    np.testing.assert_allclose(program.run(x.numpy()), expected, atol=1e-5)
    for rounding in (None, NearestRounding()):
        fixed = program.run(x.numpy(), "fixed", rounding=rounding)
        assert np.abs(fixed - expected).max() < 5e-3


def test_batch_norm_disappears_except_after_a_sum():
    program = compile_program(Network(["conv", "residual", "depthwise"]), images(8))
    assert not any(isinstance(op, Affine) for op in program.ops)
    program = compile_program(Network(["preactivation"]), images(8))
    assert [op.name for op in program.ops if isinstance(op, Affine)] == ["blocks.0.norm1", "blocks.0.norm2"]


def test_a_stem_without_activation_opens_once_in_the_full_ring():
    program = compile_program(Network(["residual"]), images(8))
    stem = program["stem.0.wire"]
    assert isinstance(stem, Requantize)
    assert (stem.one_round, stem.open_bits, program["stem.0"].bits) == (True, 64, 64)


def test_normalisation_folds_exactly_also_at_padded_borders():
    network, raw = Network(["conv"]), torch.rand(8, 3, 16, 16)
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    program = compile_program(network, raw, normalize=(mean, std))
    normalised = (raw - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    np.testing.assert_allclose(program.run(raw.numpy()), torch_logits(network, normalised), atol=1e-5)
    first = next(op for op in program.ops if isinstance(op, Conv))
    assert program.parameters[f"{first.name}.bias"].shape == first.shape  # another one at every border
    assert np.abs(program.run(raw.numpy(), "fixed") - torch_logits(network, normalised)).max() < 5e-3


def test_masks_become_index_lists():
    network = Network(["conv", "residual"])
    mask_(network, (0.3, 0.0, 1.0))
    program = compile_program(network, images(8))
    activations = [op for op in program.ops if isinstance(op, Activation)]
    first, none, every = activations
    assert 0 < first.kept_count < first.size
    assert (none.kept_count, every.quad_count) == (0, 0)
    assert f"{every.name}.a" not in program.parameters
    assert f"{none.name}.a" in program.parameters
    assert program.relu_count == first.kept_count + every.size


def test_uneven_zero_padding_moves_into_the_kernel():
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pad = nn.ZeroPad2d((0, 1, 1, 2))
            self.conv = nn.Conv2d(3, 4, 3, stride=2)

        def forward(self, x):
            return self.conv(self.pad(x)).mean((2, 3))

    torch.manual_seed(0)
    network, x = Padded().eval(), images(4)
    program = compile_program(network, x)
    np.testing.assert_allclose(program.run(x.numpy()), torch_logits(network, x), atol=1e-6)
    assert [op.kernel for op in program.ops if isinstance(op, Conv)] == [(4, 4)]


@pytest.mark.parametrize("name", ["digits_net", "resnet20", "resnet18", "wide_resnet22_8"])
def test_library_networks_equal_torch(name):
    torch.manual_seed(0)
    spec, network = models.spec(name), models.create(name)
    x = images(4, shape=(spec.channels, spec.image_size, spec.image_size))
    settle_(network, x)
    program = compile_program(network, x)
    expected = torch_logits(network, x[:1])
    assert np.abs(program.run(x[:1].numpy()) - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())
    assert np.abs(program.run(x[:1].numpy(), "fixed") - expected).max() < 0.01 * max(1.0, np.abs(expected).max())


def test_squeeze_excitation_blocks_of_efficientnet_equal_torch():
    torch.manual_seed(0)
    network = nn.Sequential(models.create("efficientnet_b2").features[:3], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = images(8, shape=(3, 48, 48))
    replace_activations_(network, x[:2], kinds=("silu",))  # SiLU becomes ReLU, all of them kept
    settle_(network, x)
    program = compile_program(network, x)
    expected = torch_logits(network, x[:2])
    np.testing.assert_allclose(program.run(x[:2].numpy()), expected, atol=1e-5)
    assert np.abs(program.run(x[:2].numpy(), "fixed") - expected).max() < FIXED_TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["efficientnet_b2", "efficientnet_lite0", "resnet32", "resnet56"])
def test_deep_networks_equal_torch(name):
    """Float only: an untrained network this deep amplifies fixed-point rounding a hundredfold."""
    torch.manual_seed(0)
    options = {"image_size": 64} if name == "efficientnet_lite0" else {}
    network, x = models.create(name, 10, **options), images(8, shape=(3, 64, 64))
    replace_activations_(network, x[:2], kinds=("relu", "relu6", "silu"))
    settle_(network, x)
    network.double()
    program = compile_program(network, x)
    expected = torch_logits(network, x[:1].double())
    assert np.abs(program.run(x[:1].numpy()) - expected).max() < 1e-5 * max(1.0, np.abs(expected).max())


def test_compiling_holds_at_most_two_copies_beside_the_model():
    network = models.create("resnet18", 10).eval()
    weights = sum(4 * parameter.numel() for parameter in network.parameters())
    tracemalloc.start()
    sketch_program(network, torch.zeros(1, 3, 32, 32))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * weights


def test_training_on_does_not_change_a_compiled_program():
    network = nn.Sequential(nn.Linear(3, 2))
    program = compile_program(network, torch.randn(4, 3))
    before = program.run(np.ones((1, 3)))
    with torch.no_grad():
        network[0].weight.add_(1)
    np.testing.assert_array_equal(program.run(np.ones((1, 3))), before)


def test_compiling_leaves_the_model_as_it_was():
    network = Network(["residual"])
    network.train()
    network.blocks.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    compile_program(network, images(4))
    assert (network.training, network.blocks.training) == (True, False)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_sketch_has_the_shapes_and_widths_of_a_compiled_program():
    network = Network(["residual", "strided"])
    sketch, program = sketch_program(network, images(1)), compile_program(network, images(8))
    assert [(type(a), a.name, a.shape, a.bits) for a in sketch.ops] == [
        (type(b), b.name, b.shape, b.bits) for b in program.ops
    ]


def test_loader_batches_with_labels_and_single_images_are_accepted():
    network, x = Network(["conv"]), images(6)
    loader = [(x[:4], torch.zeros(4)), (x[4:], torch.zeros(2))]
    assert compile_program(network, loader).info["calibration_images"] == 6
    assert compile_program(network, [x[:1]]).info["calibration_images"] == 1


def test_refusals_say_what_is_wrong():
    network = Network(["conv"])
    with pytest.raises(DataError, match="no calibration images"):
        compile_program(network, [])
    program = compile_program(network, images(4))
    with pytest.raises(ConfigError, match=r"expects \(N, 3, 16, 16\)"):
        program.run(np.zeros((1, 3, 8, 8)))
    with pytest.raises(ConfigError, match="no parameters"):
        program.public().run(np.zeros((1, 3, 16, 16)), "fixed")
    with pytest.raises(ConfigError, match="valid: float, fixed, secure"):
        program.run(np.zeros((1, 3, 16, 16)), "exact")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOpError, match="2 operation"):
        compile_program(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Softmax(1)), torch.zeros(2, 4))
