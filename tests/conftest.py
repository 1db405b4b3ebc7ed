"""Tests run side by side: each process keeps to one thread, or they fight over the cores.

Property tests draw the same examples at every run, so that one that passed does not fail elsewhere; the slow ones
(`make test-slow`) draw new ones.
"""

from __future__ import annotations

import logging
import os

import pytest
from hypothesis import settings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Under pytest's log capture torch would write its export traces as records, and those hold whole graphs in memory.
logging.getLogger("torch.__trace").disabled = True

settings.register_profile("same examples", derandomize=True, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "not slow":
        settings.load_profile("same examples")
