"""Ring convolution against a plain sum over taps in wrapping numpy arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep import _native

CASES = settings(max_examples=40)


def words(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**64, shape, dtype=np.uint64)


def cut(values: np.ndarray, bits: int) -> np.ndarray:
    return values & np.uint64(2**bits - 1)


def slow_conv(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> np.ndarray:
    """One tap of the kernel at a time on the zero-padded batch."""
    N, C, H, W = x.shape
    outputs, Cg, kh, kw = w.shape
    padded = np.zeros((N, C, H + 2 * padding[0], W + 2 * padding[1]), np.uint64)
    padded[:, :, padding[0] : padding[0] + H, padding[1] : padding[1] + W] = x
    Ho = (padded.shape[2] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    Wo = (padded.shape[3] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((N, outputs, Ho, Wo), np.uint64)
    for o in range(outputs):
        first = (o // (outputs // groups)) * Cg
        for ky in range(kh):
            for kx in range(kw):
                rows = slice(ky * dilation[0], ky * dilation[0] + stride[0] * (Ho - 1) + 1, stride[0])
                columns = slice(kx * dilation[1], kx * dilation[1] + stride[1] * (Wo - 1) + 1, stride[1])
                part = padded[:, first : first + Cg, rows, columns]
                out[:, o] += (w[o, :, ky, kx][None, :, None, None] * part).sum(1, dtype=np.uint64)
    return out


def agree(
    N: int,
    C: int,
    outputs: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    bits: int,
    algorithm: str = "auto",
    seed: int = 0,
    **geometry: object,
) -> _native.PackedConv:
    rng = np.random.default_rng(seed)
    w, x = words(rng, outputs, C // int(geometry.get("groups", 1)), *kernel), words(rng, N, C, *size)
    conv = _native.PackedConv(w, (C, *size), bits=bits, algorithm=algorithm, **geometry)
    found, expected = conv.run(x), slow_conv(x, w, **geometry)
    assert found.shape == expected.shape == (N, *conv.out_shape)
    assert np.array_equal(cut(found, bits), cut(expected, bits))
    assert np.array_equal(conv.run(x), found)
    onto = words(rng, *found.shape)
    assert np.array_equal(conv.run(x, onto.copy()), onto + found)
    bias = words(rng, outputs)
    more = found + bias[:, None, None]
    assert np.array_equal(conv.run(x, bias=bias), more)
    assert np.array_equal(conv.run(x, onto.copy(), bias), onto + more)
    return conv


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@CASES
@given(st.data())
def test_any_geometry_agrees_with_the_slow_sum(level: str, data: st.DataObject) -> None:
    draw = data.draw
    groups = draw(st.integers(1, 3))
    kernel, dilation = draw(pairs), draw(pairs)
    least = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    size = tuple(draw(st.integers(max(1, m - 2 * p), 13)) for m, p in zip(least, padding))
    agree(
        draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 11)),
        groups * draw(st.integers(1, 40)),
        size,
        kernel,
        draw(st.sampled_from([64, 63, 53, 52, 50, 46, 44, 32, 1])),
        seed=draw(st.integers(0, 999)),
        stride=draw(pairs),
        padding=padding,
        dilation=dilation,
        groups=groups,
    )


@CASES
@given(st.data())
def test_taps_that_meet_the_border_only_are_left_out_and_no_others(level: str, data: st.DataObject) -> None:
    """So many channels that a step is one tap, of small images with borders up to wider than the kernel."""
    draw = data.draw
    kernel, dilation = draw(pairs), draw(pairs)
    padding = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding)]
    agree(
        draw(st.integers(1, 3)),
        draw(st.sampled_from([50, 97, 131, 257])),
        draw(st.sampled_from([1, 9, 33])),
        tuple(draw(st.integers(length, length + 4)) for length in least),
        kernel,
        draw(st.sampled_from([64, 52, 46, 44])),
        algorithm="direct",
        stride=draw(pairs),
        padding=padding,
        dilation=dilation,
    )


@CASES
@given(st.data())
def test_depthwise_agrees_with_the_slow_sum(level: str, data: st.DataObject) -> None:
    draw = data.draw
    channels, multiplier = draw(st.integers(2, 20)), draw(st.integers(1, 2))
    agree(
        draw(st.integers(1, 2)),
        channels,
        channels * multiplier,
        draw(st.tuples(st.integers(5, 20), st.integers(5, 20))),
        draw(st.sampled_from([(3, 3), (5, 5), (1, 3)])),
        draw(st.sampled_from([64, 52, 44])),
        stride=draw(st.sampled_from([(1, 1), (2, 2)])),
        padding=draw(st.sampled_from([(0, 0), (1, 1), (2, 2)])),
        groups=channels,
    )


@CASES
@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 70),
    st.tuples(st.integers(1, 15), st.integers(1, 15)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.sampled_from([1, 30, 44, 46, 47, 50, 51, 62]),
    st.sampled_from(["winograd2", "winograd3", "winograd4"]),
)
def test_winograd_agrees_with_the_slow_sum(
    level: str, N: int, C: int, outputs: int, size: tuple[int, int], padding: tuple[int, int], bits: int, tile: str
) -> None:
    conv = agree(N, C, outputs, size, (3, 3), bits, tile, padding=padding)
    assert conv.algorithm == tile


@pytest.mark.parametrize("side", range(1, 15))
def test_tiles_of_three_and_two_meet_at_every_length(level: str, side: int) -> None:
    agree(3, 9, 10, (side, 15 - side), (3, 3), 44, "winograd3", padding=(1, 1))


LIMB_EDGES = [
    0,
    1,
    2**14,
    2**14 + 1,
    2**14 - 1,
    2**15,
    2**15 - 1,
    2**30,
    2**31,
    2**31 - 2**14,
    2**46 - 1,
    2**46 - 2**14,
]


@CASES
@given(st.sampled_from(LIMB_EDGES), st.sampled_from(LIMB_EDGES), st.integers(1, 90), st.sampled_from([46, 44]))
def test_sums_of_extreme_limbs_do_not_overflow(level: str, one: int, other: int, channels: int, bits: int) -> None:
    """Every product as large as its limbs allow, and of one sign: partial sums are at their largest."""
    x, w = np.full((1, channels, 4, 5), one, np.uint64), np.full((9, channels, 3, 3), other, np.uint64)
    found = _native.PackedConv(w, x.shape[1:], padding=(1, 1), bits=bits, algorithm="direct").run(x)
    assert np.array_equal(cut(found, bits), cut(slow_conv(x, w, padding=(1, 1)), bits))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bits", [48, 44])
def test_large_weights_of_few_bits_take_six_bytes(level: str, bits: int, groups: int) -> None:
    geometry = {"padding": (1, 1), "groups": groups}
    conv = agree(2, 90 * groups, 170 * groups, (4, 7), (3, 3), bits, "direct", **geometry)
    weights = 90 * 9 * 176 * groups  # 170 channels in vectors of eight
    assert conv.packed_bytes == (6 * weights + 16 if level == "avx512" else conv.packed_bytes)
    wider = agree(1, 90 * groups, 170 * groups, (4, 7), (3, 3), bits + 5, "direct", **geometry)
    assert wider.packed_bytes >= 8 * weights


def test_large_transformed_weights_of_few_bits_take_six_bytes(level: str) -> None:
    for side in (2, 3, 4):
        conv = agree(1, 120, 90, (6, 5), (3, 3), 46, f"winograd{side}", padding=(1, 1))
        assert level != "avx512" or conv.packed_bytes == 6 * (side + 2) ** 2 * 120 * 96 + 16


@pytest.mark.parametrize("bits", [44, 64])
@pytest.mark.parametrize("algorithm", ["auto", "direct"])
@pytest.mark.parametrize(
    ("C", "outputs", "side", "kernel", "stride"),
    [(3, 64, 32, 3, 1), (64, 64, 32, 3, 1), (64, 128, 32, 3, 2), (64, 128, 32, 1, 2), (512, 512, 4, 3, 1)],
)
def test_resnet_shapes(C: int, outputs: int, side: int, kernel: int, stride: int, algorithm: str, bits: int) -> None:
    agree(
        2,
        C,
        outputs,
        (side, side),
        (kernel, kernel),
        bits,
        algorithm,
        stride=(stride, stride),
        padding=(kernel // 2,) * 2,
    )


def test_a_bias_has_one_number_an_output_channel() -> None:
    conv = _native.PackedConv(np.ones((4, 3, 1, 1), np.uint64), (3, 5, 5))
    with pytest.raises(ValueError, match=r"bias: expected shape \(4\), found \(3,\)"):
        conv.run(np.ones((1, 3, 5, 5), np.uint64), bias=np.ones(3, np.uint64))


def test_threads_do_not_change_the_result(level: str) -> None:
    _native.set_threads(2)
    try:
        for algorithm in ("direct", "winograd"):
            for batch, channels in ((1, 80), (3, 16)):
                agree(batch, channels, 72, (9, 11), (3, 3), 44, algorithm, padding=(1, 1))
        agree(1, 600, 96, (1, 1), (1, 1), 64)
        agree(2, 24, 24, (15, 15), (3, 3), 64, padding=(1, 1), groups=24)
    finally:
        _native.set_threads(1)


@CASES
@given(st.integers(0, 40), st.integers(1, 70), st.integers(1, 50), st.sampled_from([64, 52, 44]))
def test_matmul_agrees_with_the_slow_product(level: str, N: int, F: int, outputs: int, bits: int) -> None:
    rng = np.random.default_rng(N)
    w, x = words(rng, outputs, F), words(rng, N, F)
    expected = (x[:, None, :] * w[None]).sum(2, dtype=np.uint64)
    assert np.array_equal(cut(_native.PackedMatmul(w, bits).run(x), bits), cut(expected, bits))


def test_result_is_added_to_the_given_array(level: str) -> None:
    rng = np.random.default_rng(0)
    conv = _native.PackedConv(words(rng, 4, 3, 3, 3), (3, 8, 8), padding=(1, 1))
    out = np.zeros((2, *conv.out_shape), np.uint64)
    x = words(rng, 2, 3, 8, 8)
    assert conv.run(x, out) is out
    assert np.array_equal(out, conv.run(x))
    assert conv.packed_bytes >= 4 * 27 * 8
    matrix, rows, onto = words(rng, 5, 9), words(rng, 4, 9), words(rng, 4, 5)
    product = _native.PackedMatmul(matrix)
    assert np.array_equal(product.run(rows, onto.copy()), onto + product.run(rows))
    with pytest.raises(ValueError, match=r"onto: expected shape \(4, 5\), found \(5, 4\)"):
        product.run(rows, words(rng, 5, 4))


def test_lean_weights_are_smaller_where_much_is_saved_and_give_the_same_result(level: str) -> None:
    rng = np.random.default_rng(0)

    def both(channels: int, side: int) -> list[_native.PackedConv]:
        w, x = words(rng, channels, channels, 3, 3), words(rng, 1, channels, side, side)
        convs = [_native.PackedConv(w, x.shape[1:], padding=(1, 1), bits=44, algorithm=a) for a in ("auto", "lean")]
        results = [cut(conv.run(x), 44) for conv in convs]
        assert np.array_equal(*results)
        return convs

    fast, lean = both(512, 4)
    assert lean.packed_bytes <= fast.packed_bytes
    if level.startswith("avx"):  # elsewhere the direct convolution takes much longer
        assert lean.algorithm == "direct"
    fast, lean = both(256, 8)
    assert not level.startswith("avx") or lean.algorithm == "winograd2"
    fast, lean = both(64, 8)  # nothing to save
    assert (lean.algorithm, lean.packed_bytes) == (fast.algorithm, fast.packed_bytes)


def test_mistakes_are_named() -> None:
    w = np.zeros((4, 3, 3, 3), np.uint64)
    with pytest.raises(ValueError, match=r"x: expected shape \(any, 3, 8, 8\), found \(1, 3, 8, 9\)"):
        _native.PackedConv(w, (3, 8, 8)).run(np.zeros((1, 3, 8, 9), np.uint64))
    with pytest.raises(ValueError, match="does not fit"):
        _native.PackedConv(w, (3, 2, 8))
    with pytest.raises(ValueError, match="groups = 2 does not divide 3 channels"):
        _native.PackedConv(w, (3, 8, 8), groups=2)
    with pytest.raises(ValueError, match="winograd needs a 3x3 kernel with stride 1"):
        _native.PackedConv(w, (3, 8, 8), stride=(2, 2), algorithm="winograd")
    with pytest.raises(ValueError, match="winograd needs bits <= 62"):
        _native.PackedConv(w, (3, 8, 8), bits=63, algorithm="winograd")
