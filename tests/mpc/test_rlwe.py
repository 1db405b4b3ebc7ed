"""Encryption: packing counts, linear layers and slot products against plain arithmetic, noise against its bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep import _native
from autorep._native import rns
from autorep.errors import ConfigError
from autorep.mpc.prg import fresh_seed
from autorep.mpc.ring import low_bits, reduce
from autorep.mpc.rlwe import slots
from autorep.mpc.rlwe.linear import MaskOwner, WeightOwner, request_bytes
from autorep.mpc.rlwe.packing import Layer, pack, tolerance
from autorep.mpc.rlwe.parameters import (
    SecretKey,
    linear_ring,
    pack_polynomials,
    read_public_key,
    slot_ring,
    unpack_polynomials,
)
from autorep.program import ir
from tests.chance import uneven

DEVIATIONS = 8  # which no value of the suite exceeds, but with a chance of 1e-10: there are some 100,000


def layer(
    channels: int, outputs: int, side: int, kernel: int = 3, stride: int = 1, padding: int = 1, dilation: int = 1,
    groups: int = 1, bits: int = 44, weight_frac: int = 16,
) -> Layer:  # fmt: skip
    out = (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return Layer(
        "layer", bits, weight_frac, channels, (side, side), outputs, (out, out), (kernel, kernel),
        (stride, stride), (padding, padding), (dilation, dilation), groups,
    )  # fmt: skip


@pytest.fixture(scope="module")
def key() -> SecretKey:
    return SecretKey(linear_ring())


def cross_term(key: SecretKey, shape: Layer, rho: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, int, int]:
    """W∗ρ through encryption, as a ring element, and the bytes of request and answer."""
    packing, seed, images = pack(shape), fresh_seed(), len(rho)
    owner, evaluator = MaskOwner(packing, key), WeightOwner(packing, weight)
    request = owner.request(rho, seed)
    answer, share1 = evaluator.answer(request, seed, images, read_public_key(linear_ring(), memoryview(key.public())))
    return owner.finish(answer, images) + share1, request.nbytes, answer.nbytes


def error_of(key: SecretKey, shape: Layer, rho: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Signed deviation of every output, in units of the ring; sizes are checked on the way."""
    found, requested, answered = cross_term(key, shape, rho, weight)
    assert requested == request_bytes(pack(shape), len(rho))
    assert answered == pack(shape).answer_bytes(len(rho))
    expected = _native.PackedConv(
        weight, (shape.channels, *shape.side), shape.stride, shape.padding, shape.dilation, shape.groups
    ).run(rho)
    return ir.signed(reduce(found - expected, shape.ring_bits), shape.ring_bits)


def random_words(seed: int, bits: int, *shape: int) -> np.ndarray:
    return reduce(np.random.default_rng(seed).integers(0, 2**64, shape, dtype=np.uint64), bits)


def test_counts_of_resnet18_are_those_of_the_design() -> None:
    layers = [layer(3, 64, 32, bits=64), *[layer(64, 64, 32)] * 4]
    for channels, side in ((64, 32), (128, 16), (256, 8)):
        layers += [layer(channels, 2 * channels, side, stride=2), layer(channels, 2 * channels, side, 1, 2, 0)]
        layers += [layer(2 * channels, 2 * channels, side // 2)] * 3
    layers.append(layer(512, 100, 1, 1, 1, 0))
    packings = [pack(shape) for shape in layers]
    assert sum(p.requests for p in packings) == 464
    assert sum(p.answers for p in packings) == 1157
    assert sum(p.products for p in packings) == 28398
    assert 2 * sum(p.request_bytes + p.answer_bytes(1) for p in packings) < 101e6


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_linear_layers_of_any_geometry(key: SecretKey, data: st.DataObject) -> None:
    groups = data.draw(st.sampled_from([1, 1, 2, 4]))
    channels, outputs = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 3))
    kernel, dilation = data.draw(st.sampled_from([1, 2, 3, 5])), data.draw(st.sampled_from([1, 1, 2]))
    side = data.draw(st.integers(dilation * (kernel - 1) + 1, 14))
    shape = layer(
        channels, outputs, side, kernel, data.draw(st.integers(1, 3)), data.draw(st.integers(0, kernel)), dilation,
        groups, data.draw(st.sampled_from([32, 44, 49, 64])),
    )  # fmt: skip
    images = data.draw(st.integers(1, 2))
    rho = random_words(1, shape.ring_bits, images, channels, side, side)
    weight = random_words(2, shape.ring_bits, *shape.weight_shape)
    errors = error_of(key, shape, rho, weight)
    assert np.abs(errors).max() <= DEVIATIONS * pack(shape).deviation + 1
    assert pack(shape).deviation <= tolerance(shape)


@pytest.mark.parametrize("shape", [layer(3, 4, 70), layer(2, 3, 80, 5, 2, 2), layer(2, 2, 66, groups=2)])
def test_planes_larger_than_a_polynomial_are_cut_into_bands(key: SecretKey, shape: Layer) -> None:
    rho = random_words(3, 44, 1, shape.channels, *shape.side)
    errors = error_of(key, shape, rho, random_words(4, 44, *shape.weight_shape))
    assert np.abs(errors).max() < DEVIATIONS * pack(shape).deviation
    assert pack(layer(3, 4, 70)).bands > 1


@pytest.mark.parametrize("shape", [layer(64, 16, 8), layer(16, 16, 8, bits=49), layer(3, 8, 16, bits=64)])
def test_error_is_as_planned_at_the_largest_operands(key: SecretKey, shape: Layer) -> None:
    """Weights of greatest magnitude make the noise largest: √3 above that of uniform ones, still within the bound."""
    top = np.uint64(1 << (shape.ring_bits - 1))
    rho = np.full((1, shape.channels, *shape.side), low_bits(shape.ring_bits))
    signs = random_words(5, 1, *shape.weight_shape)
    extreme = error_of(key, shape, rho, reduce(top - np.uint64(1) + signs, shape.ring_bits))
    assert np.abs(extreme).max() <= DEVIATIONS * 3**0.5 * pack(shape).deviation
    uniform = error_of(
        key, shape, random_words(6, shape.ring_bits, *rho.shape), random_words(7, shape.ring_bits, *shape.weight_shape)
    )
    ratio = np.sqrt((uniform.astype(float) ** 2).mean()) / pack(shape).deviation
    assert 0.8 < ratio < 1.2


def test_weights_with_few_fractional_bits_get_finer_answers(key: SecretKey) -> None:
    shape, coarse = layer(4, 4, 8, bits=24, weight_frac=8), layer(4, 4, 8, bits=24)
    assert pack(shape).answer_bits > pack(coarse).answer_bits
    assert pack(shape).deviation < pack(coarse).deviation / 100
    errors = error_of(key, shape, random_words(8, 24, 1, 4, 8, 8), random_words(9, 24, *shape.weight_shape))
    assert np.abs(errors).max() <= DEVIATIONS * pack(shape).deviation + 1


def test_layers_that_do_not_fit_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="layer: no packing"):
        pack(layer(3, 4, 5000))
    with pytest.raises(ConfigError, match="layer: no packing"):
        pack(layer(512, 512, 4, bits=64, weight_frac=3))


def test_answers_are_pseudorandom_whatever_the_weights_are(key: SecretKey) -> None:
    """Zero weights and large ones: an answer's bytes are uniform, and two answers to one request share nothing."""
    shape = layer(4, 8, 8)
    packing, seed = pack(shape), fresh_seed()
    public = read_public_key(linear_ring(), memoryview(key.public()))
    request = MaskOwner(packing, key).request(random_words(10, 44, 4, 4, 8, 8), seed)
    for weight in (np.zeros(shape.weight_shape, np.uint64), random_words(11, 44, *shape.weight_shape)):
        evaluator = WeightOwner(packing, weight)
        (first, share), (second, other) = (evaluator.answer(request, seed, 4, public) for _ in range(2))
        assert np.unique(np.stack([share, other])).size > 1.99 * share.size  # the own shares: masks, new each time
        for data in (first, first ^ second):
            assert not uneven(data)


def test_slot_products_are_exact_and_their_answers_uniform() -> None:
    key, rng, t = SecretKey(slot_ring()), np.random.default_rng(12), slots.MODULUS.value
    holder, evaluator = slots.KeyHolder(key), slots.Evaluator(read_public_key(slot_ring(), memoryview(key.public())))
    x0, x1, y0, y1 = (rng.integers(0, t, (1, slots.SLOTS), dtype=np.uint64) for _ in range(4))
    for values in (x0, x1, y0, y1):
        values[0, :3] = [0, t - 1, t // 2]
    seed = fresh_seed()
    x, y = (holder.encrypt(values, seed, name) for values, name in ((x0, "x"), (y0, "y")))
    assert x.nbytes == slots.request_bytes(1)
    factors = slots.Factor.read(x, seed, "x", x1), slots.Factor.read(y, seed, "y", y1)
    answer, share1 = evaluator.answer(*factors)
    assert answer.nbytes == slots.answer_bytes(1)
    assert np.unique(share1).size > 0.99 * slots.SLOTS
    share0 = holder.decrypt(answer, 1)
    for a, b, c, d, u, v in zip(*(values[0].tolist() for values in (x0, x1, y0, y1, share0, share1))):
        assert (u + v) % t == (a * d + c * b) % t
    assert not uneven(answer)


def test_phase_of_a_slot_answer_stays_within_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The distance to the nearest multiple of 1/t, in that unit, at operands of greatest magnitude: as large as the
    flooding noise and the rounding make it, and far from one half."""
    key, t = SecretKey(slot_ring()), slots.MODULUS.value
    holder, evaluator = slots.KeyHolder(key), slots.Evaluator(read_public_key(slot_ring(), memoryview(key.public())))
    signs = np.random.default_rng(1).integers(0, 2, (1, slots.SLOTS), dtype=np.uint64)
    values, seed = slots._numbers((signs + np.uint64(t // 2)) % np.uint64(t)), fresh_seed()  # coefficients of ±t/2
    factor = slots.Factor.read(holder.encrypt(values, seed, "x"), seed, "x", values)
    distances = []
    scale = rns.scale_fraction

    def spy(lo: np.ndarray, hi: np.ndarray, bits: int, modulus: int) -> np.ndarray:
        scaled = ((int(h) << 64 | int(low)) * modulus % (1 << bits) for low, h in zip(lo[0], hi[0]))
        distances.extend(min(part, (1 << bits) - part) / (1 << bits) for part in scaled)
        return scale(lo, hi, bits, modulus)

    monkeypatch.setattr(rns, "scale_fraction", spy)
    holder.decrypt(evaluator.answer(factor, factor)[0], 1)
    flood, rounded = 2.0**slots.FLOOD_BITS / slot_ring().modulus * t / 12**0.5, slots.ROUNDING * t / 6
    measured = np.sqrt(np.mean(np.square(distances)))
    assert 0.95 < measured / np.hypot(flood, rounded) < 1.05
    assert max(distances) < slots.PHASE_ERROR * t


def test_slot_noise_is_flooded_and_far_from_a_wrong_rounding() -> None:
    assert slot_ring().modulus > 2**195.9
    assert slots.PRODUCT_NOISE * 2.0**59 < 2.0**slots.FLOOD_BITS
    assert slots.PHASE_ERROR * slots.MODULUS.value < 0.4


def test_residues_beyond_a_prime_are_brought_back() -> None:
    """A peer that sends 49-bit values which are no residues cannot leave the kernels' range."""
    ring = linear_ring()
    wild = np.full((2, 1, ring.n), (1 << 49) - 1, np.uint64)
    found = unpack_polynomials(ring, pack_polynomials(wild), 1)
    assert (found < np.array(ring.primes, np.uint64)[:, None, None]).all()
