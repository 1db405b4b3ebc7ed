"""The same tests anywhere: one thread a process, the same examples, the same random numbers, whatever ran before.

Tests run side by side, in an order that their durations decide. So that one that passed does not fail elsewhere, each
begins with the same state of the public generators, and property tests draw the same examples at every run; the slow
ones (`make test-slow`) draw new ones. Secrets come from the operating system as always: what tests say of them holds
but for chances far below 1e-9, which `tests/chance.py` computes.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Under pytest's log capture torch would write its export traces as records, and those hold whole graphs in memory.
logging.getLogger("torch.__trace").disabled = True

# Hypothesis would try constants that it finds in all modules of ours that happen to be loaded: others in every order of
# the tests. And how long an example takes says how busy the machine is.
providers._get_local_constants = lambda: providers.Constants()
UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("new examples", derandomize=False, **UNHURRIED)
settings.register_profile("same examples", derandomize=True, print_blob=True, database=None, **UNHURRIED)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("new examples" if config.option.markexpr == "slow" else "same examples")


def start_generators() -> None:
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> None:
    """What a fixture draws does not depend on which test needs it first."""
    start_generators()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    start_generators()
