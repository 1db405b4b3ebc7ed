"""The count of unnoticed wrong answers adds up, and images far out of range are refused."""

from __future__ import annotations

from autorep.bench.misses import misses
from autorep.compiler.compile import compile_program
from tests.program.networks import Network, images, mask_


def test_far_images_are_refused_and_near_ones_answered():
    network = Network(["residual", "maximum"])
    mask_(network, (0.2, 0.0, 1.0))
    program = compile_program(network, images(16))
    near, far = misses(program, images(16).numpy(), (1.0, 64.0))
    assert near == {
        "factor": 1.0, "images": 16, "refused": 0, "wrong": 0, "flagged": 0, "missed": 0, "missed_without_refusal": 0
    }  # fmt: skip
    assert far["refused"] == 16
    assert far["missed"] == far["flagged"] == 0
    assert far["missed_without_refusal"] <= far["wrong"]
