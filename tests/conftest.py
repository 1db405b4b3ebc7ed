"""Tests run side by side: each process keeps to one thread, or they fight over the cores."""

from __future__ import annotations

import logging
import os

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Under pytest's log capture torch would write its export traces as records, and those hold whole graphs in memory.
logging.getLogger("torch.__trace").disabled = True
