"""Other systems to stand beside: installed on demand into folders of their own, run by the scripts under bench/."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autorep.bench.processes import Processes
from autorep.errors import ConfigError
from autorep.modes import Program
from autorep.program import files
from autorep.settings import warn


@dataclass(frozen=True)
class PeerSystem:
    """One system.

    Attributes:
        package: a folder that is there once it is installed.
        requirements: what pip installs; options: of that call.
        script: one party of it, relative to the top of the checkout.
        frac: fractional bits of its shares.
        settings: of its script's start, beside the common ones.
        notes: what must be known to compare it with ours.
        dealer: whether somebody the parties trust, or they would have to, makes its correlated randomness.
    """

    name: str
    package: str
    requirements: tuple[str, ...]
    options: tuple[str, ...]
    script: Path
    frac: int
    settings: dict[str, str]
    notes: tuple[str, ...]
    dealer: bool = True

    def install(self, folder: Path) -> Path:
        """Put it and what it imports under `folder`, once; the environment of autorep itself is not touched."""
        target = folder / self.package
        if not self.script.exists():
            raise ConfigError(f"{self.script} is not here; run `autorep bench peers` from the top of a source checkout")
        if (target / self.package).exists():
            return target
        warn(f"installing {self.name} into {target}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *self.options]
        command += ["--target", str(target), *self.requirements]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            reason = run.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise ConfigError(f"{self.name} does not install ({reason[0]}); check the network, or leave it out")
        return target


CRYPTEN_NOTES = (
    "Secret image and secret weights in both systems, semi-honest, two processes on loopback, one thread each, from "
    "shares of the image to shares of the logits. Ours also hides the quadratics' coefficients and encrypts the link; "
    "CrypTen gets public coefficients and a plain link.",
    "CrypTen makes its triples in line, from generators that both parties know (its default provider): its seconds "
    'contain that, and are what a user of it waits for. Ours are made ahead by a dealer; the rows "with dealer" '
    "add making both kits and both parties' preparation to the online seconds. "
    "Once per model ours also opens the masked weights.",
    "A kept ReLU is compared by distributed comparison functions (no rounds of its own, 1.3 kB prepared ahead), or by "
    "bits (more rounds, far less prepared ahead): the first is for links with a delay, the second for a local network.",
)
CRYPTEN = PeerSystem(
    "CrypTen 0.4.1",
    "crypten",
    # Without their own dependencies: CrypTen asks for packages that a current torch neither needs nor tolerates.
    ("crypten==0.4.1", "omegaconf", "onnx", "pyyaml", "antlr4-python3-runtime==4.9.3", "protobuf", "ml_dtypes")
    + ("typing_extensions",),
    ("--no-deps",),
    Path("bench") / "crypten_shim" / "party.py",
    16,
    {},
    CRYPTEN_NOTES,
)
SPU = PeerSystem(
    "SPU 0.9.5",
    "spu",
    ("spu==0.9.5",),
    (),
    Path("bench") / "spu_shim" / "party.py",
    18,
    {"protocol": "SEMI2K"},
    (
        "SPU runs SEMI2K in a 64-bit ring with 18 fractional bits, secret weights, public coefficients, one thread; "
        "it makes its triples in line with its default first-party provider; it states neither bytes nor rounds.",
    ),
)
CHEETAH_NOTES = (
    "Neither system has a dealer. SPU runs Cheetah (ring-LWE and silent transfers) in a 64-bit ring with 18 fractional "
    "bits, secret weights, public coefficients, one thread, and does all its work in line; it states neither bytes nor "
    "rounds. Ours makes its kits ahead, four at a time, of which one is counted, with secret coefficients and over TLS "
    '1.3; the rows "with preparation" add that to the online seconds and bytes.',
)
CHEETAH = replace(SPU, name="SPU 0.9.5 Cheetah", settings={"protocol": "CHEETAH"}, notes=CHEETAH_NOTES, dealer=False)
# Level of our kernels -> what holds the libraries of the others (torch, oneDNN, MKL, OpenBLAS) to the same instructions
SAME_LEVEL = {
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    }
}
SYSTEMS = {"crypten": CRYPTEN, "spu": SPU, "spu-cheetah": CHEETAH}


def limits() -> dict[str, str]:
    """What another system's processes are given so that they use our instructions; nothing where ours are the best."""
    return SAME_LEVEL.get(os.environ.get("AUTOREP_SIMD", "").removesuffix("-aesni"), {})


@dataclass(frozen=True)
class Answer:
    """One inference on another system: the logits, seconds until both shares of them were back, and processor seconds
    of the busier party, where the system's script measures them."""

    logits: np.ndarray
    seconds: float
    cpu_seconds: float | None


@contextmanager
def two_peers(system: PeerSystem, program: Program, images: np.ndarray, folder: Path) -> Iterator[PeerPair]:
    """Two processes of another system, installed in `folder`, that hold a Program and one batch of images as shares.

    Where our kernels are held to a lower instruction set, its processes are too.
    """
    path = os.pathsep.join(filter(None, [str(system.install(folder).resolve()), os.environ.get("PYTHONPATH", "")]))
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **limits()}
    with (
        tempfile.TemporaryDirectory(prefix="autorep-peers-") as own,
        Processes([str(system.script)], environment) as processes,
    ):
        yield PeerPair(system, program, images, Path(own), processes)


class PeerPair:
    """What `two_peers` gives; `instructions` is what its script says that it uses, None where it says nothing."""

    def __init__(
        self, system: PeerSystem, program: Program, images: np.ndarray, folder: Path, processes: Processes
    ) -> None:
        self.system, self._shape, self._processes = system, (len(images), *program.output.shape), processes
        files.save(program, folder / "program")
        np.save(folder / "image.npy", images.astype(np.float32))
        message = {
            "do": "start",
            "folder": str(folder / "program"),
            "image": str(folder / "image.npy"),
            "rendezvous": f"file://{folder / 'rendezvous'}",
            "cores": sorted(os.sched_getaffinity(0))[:2],
            "threads": 1,
            **system.settings,
        }
        processes.send([message | {"party": party} for party in (0, 1)])
        self.instructions: str | None = processes.gather()[0][0].get("instructions")

    def query(self) -> Answer:
        """One inference, triples made in line; from shares of the image to shares of the logits."""
        started = time.perf_counter()
        self._processes.send([{"do": "run"}] * 2)
        measured, answers = self._processes.gather()
        seconds = time.perf_counter() - started
        busy = [message["cpu_seconds"] for message in measured if "cpu_seconds" in message]
        shares = [np.frombuffer(answer, np.int64) for answer in answers]
        logits = (shares[0] + shares[1]) / 2.0**self.system.frac
        return Answer(logits.reshape(self._shape), seconds, max(busy, default=None))

    def count(self) -> dict[str, int | None]:
        """Rounds, and bytes each party sends, from the system's own statistics (None where it has none), not timed."""
        self._processes.send([{"do": "count"}] * 2)
        return self._processes.gather()[0][0]
