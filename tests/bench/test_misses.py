"""The count of unnoticed wrong answers adds up, and images far out of range are refused and marked."""

from __future__ import annotations

from autorep.bench.misses import CHANGES, answer_costs, misses
from autorep.compiler.compile import compile_program
from tests.program.networks import Network, images, mask_


def test_far_images_are_refused_and_near_ones_answered():
    network = Network(["residual", "maximum"])
    mask_(network, (0.2, 0.0, 1.0))
    program = compile_program(network, images(16))
    changes = {"none": CHANGES["none"], "far": lambda x, rng: 64 * x}
    near, far = misses(program, images(16).numpy(), changes)
    assert near.pop("change") == "none"
    assert near.pop("images") == 16
    assert not any(near.values())
    assert far["refused"] == 16
    assert far["shared_and_missed_by_logits"] == far["shared_and_missed_by_flag"] == 0
    for check in ("logits", "flag"):
        assert far["wrong"] - far[f"marked_by_{check}"] <= far[f"missed_by_{check}"] <= far["wrong"]
    assert far["marked_by_flag"] >= 15

    costs = {(row["answer"], row["checked"]): row["rounds"] for row in answer_costs(program)}
    assert costs["logits", False] + 1 == costs["logits", True] < costs["class", True] < costs["top-5", True]
