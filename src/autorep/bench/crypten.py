"""CrypTen as a peer: installed on demand into a folder of its own, run by the script in bench/crypten_shim."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from autorep.bench.processes import Processes
from autorep.errors import ConfigError
from autorep.program import files
from autorep.program.ir import Program
from autorep.settings import warn

VERSION = "0.4.1"
SHIM = Path("bench") / "crypten_shim" / "party.py"
FRAC = 16
# Without their own dependencies: CrypTen's list asks for packages that a current torch neither needs nor tolerates.
REQUIREMENTS = (f"crypten=={VERSION}", "omegaconf", "onnx", "pyyaml", "antlr4-python3-runtime==4.9.3", "protobuf",
                "ml_dtypes", "typing_extensions")  # fmt: skip


def install(folder: Path) -> None:
    """Put CrypTen and what it imports into `folder`, once; the environment of autorep itself is not touched."""
    if not SHIM.exists():
        raise ConfigError(f"{SHIM} is not here; run `autorep bench peers` from the top of a source checkout")
    if (folder / "crypten").exists():
        return
    warn(f"installing CrypTen {VERSION} into {folder}")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    run = subprocess.run(
        [*command, "--target", str(folder), *REQUIREMENTS], capture_output=True, text=True, check=False
    )
    if run.returncode:
        reason = run.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise ConfigError(f"CrypTen {VERSION} does not install ({reason[0]}); check the network, or --peers-folder")


@dataclass(frozen=True)
class Answer:
    """One inference on CrypTen: the logits, and seconds until both shares of them were back."""

    logits: np.ndarray
    seconds: float


class CryptenPair:
    """Context manager: two CrypTen processes that hold a Program's weights and one batch of images as shares."""

    def __init__(self, program: Program, images: np.ndarray, folder: Path, threads: int = 1) -> None:
        self.program, self._images, self._packages, self._threads = program, images, folder, threads

    def __enter__(self) -> CryptenPair:
        self._folder = tempfile.TemporaryDirectory(prefix="autorep-peers-")
        folder = Path(self._folder.name)
        files.save(self.program, folder / "program")
        np.save(folder / "image.npy", self._images.astype(np.float32))
        path = os.pathsep.join(filter(None, [str(self._packages.resolve()), os.environ.get("PYTHONPATH", "")]))
        self._processes = Processes([str(SHIM)], {"PYTHONPATH": path, "OMP_NUM_THREADS": str(self._threads)})
        message = {
            "do": "start",
            "folder": str(folder / "program"),
            "image": str(folder / "image.npy"),
            "rendezvous": f"file://{folder / 'rendezvous'}",
            "cores": sorted(os.sched_getaffinity(0))[: 2 * self._threads],
            "threads": self._threads,
        }
        try:
            self._processes.send([message | {"party": party} for party in (0, 1)])
            self._processes.gather()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self._processes.stop()
        self._folder.cleanup()

    def query(self) -> Answer:
        """One inference, triples made in line; from shares of the image to shares of the logits."""
        started = time.perf_counter()
        self._processes.send([{"do": "run"}] * 2)
        answers = self._processes.gather()[1]
        seconds = time.perf_counter() - started
        shares = [np.frombuffer(answer, np.int64) for answer in answers]
        logits = (shares[0] + shares[1]) / 2.0**FRAC
        return Answer(logits.reshape(len(self._images), *self.program.output.shape), seconds)

    def count(self) -> dict[str, int]:
        """Rounds, and bytes each party sends, from CrypTen's own statistics in a run that is not timed."""
        self._processes.send([{"do": "count"}] * 2)
        return self._processes.gather()[0][0]
