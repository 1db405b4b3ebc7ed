"""Messages between the benchmark and its processes."""

from __future__ import annotations

from multiprocessing import Pipe

import numpy as np
import pytest

from autorep.bench.processes import receive, send
from autorep.errors import ProtocolError


def test_a_message_and_its_blobs_arrive_unchanged() -> None:
    here, there = Pipe()
    words = np.arange(5, dtype=np.uint64)
    send(here, {"do": "run", "number": 3}, words, b"more")
    message, blobs = receive(there)
    assert message == {"do": "run", "number": 3}
    assert np.array_equal(np.frombuffer(blobs[0], np.uint64), words)
    assert blobs[1] == b"more"


def test_an_error_of_the_other_end_is_raised_here() -> None:
    here, there = Pipe()
    send(here, {"error": "BudgetError: too many"})
    with pytest.raises(ProtocolError, match="BudgetError: too many"):
        receive(there)


def test_an_ended_process_is_a_clear_error() -> None:
    here, there = Pipe()
    here.close()
    with pytest.raises(ProtocolError, match="ended"):
        receive(there)
