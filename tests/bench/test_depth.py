"""Fixed point holds in depth: the class of torch is kept wherever rounding cannot decide."""

from __future__ import annotations

import numpy as np
import pytest

from autorep.bench import depth


def test_a_shallow_network_keeps_its_classes():
    found = depth.measure("resnet20", images=6)
    assert found["holds"]
    assert found["clear"] >= 3
    assert found["relus"] > 100_000
    assert 0 < found["rounding_error"] < 0.01 * found["largest_logit"]
    assert 0 < found["largest_difference"] < 0.01 * found["largest_logit"]


def test_only_a_clear_class_may_not_change():
    expected = np.tile([3.0, 1.0, 0.0], (200, 1))
    expected[:20, 1] = 2.95  # of these rounding may decide
    fixed = expected.copy()
    fixed[:10, 1] = 3.05
    fixed[50, 2] = 4
    found = depth.compared(expected, fixed, 0.1)
    assert (found["clear"], found["clear_kept"], found["kept"], found["holds"]) == (180, 179, 189, False)
    assert depth.compared(expected[51:], fixed[51:], 0.1)["holds"]
    assert not depth.compared(expected[:20], fixed[:20], 0.1)["holds"]  # nothing that could hold


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_110_layers_keep_the_class_of_torch():
    found = depth.measure("resnet110", images=200)
    assert found["holds"]
    assert found["clear"] > 100
