"""Chaos: every fault an operator may meet, injected at random moments under load, for a bounded time.

Run with `make chaos` (ten minutes), or `python tests/service/chaos.py --seconds 60 --seed 1`; the seed fixes the order.
It passes when no answer was wrong, no query ended without answer or error, no kit was used twice, and the service was
back within ten seconds after every fault was over.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np

from autorep.errors import AutorepError
from autorep.program.files import program_hash
from autorep.program.ir import Program
from autorep.service.local import LocalDeployment
from autorep.service.shares import CONTENT_TYPE, body_bytes
from autorep.service.web import authority
from tests.service.conftest import small_program
from tests.service.flood import Flood
from tests.service.test_faults import Load, kits_used, use_up

RECOVERY = 10.0
DEALT = re.compile(r"^autorep_dealer_connected\{.*\} 1\.0$", re.MULTILINE)
OPTIONS = ("--timeout", "4", "--half-expiry", "2")


class Chaos:
    """A deployment under load, and the faults it must live through; each leaves everything mended behind."""

    def __init__(self, deployment: LocalDeployment, program: Program, seed: int) -> None:
        self._deployment, self._program, self._random = deployment, program, random.Random(seed)
        self.faults: dict[str, Callable[[], None]] = {
            "kill server 0": lambda: self._kill("party0"),
            "kill server 1": lambda: self._kill("party1"),
            "kill the dealer": lambda: self._kill("dealer"),
            "stop and start server 0": lambda: self._restart("party0"),
            "stop and start server 1": lambda: self._restart("party1"),
            "freeze server 0": lambda: self._freeze("party0"),
            "freeze server 1": lambda: self._freeze("party1"),
            "reload": self._reload,
            "flip bits in kits": self._flip,
            "delete kits": self._delete,
            "no room for kits": self._no_room,
            "no room at all": lambda: self._limit(self._role(), resource.RLIMIT_FSIZE, 0),
            "no descriptors": self._no_descriptors,
            "restore an old store": self._restore,
            "delete the store": self._delete_store,
            "empty the bundle": self._empty_bundle,
            "flood": lambda: self._flood(*self._deployment.urls[:1]),
            "strangers at the servers' link": lambda: self._flood(self._deployment._peer),
            "strangers at the dealer": lambda: self._flood(self._deployment._supply),
            "lone halves": self._lone_halves,
            "too many clients": self._crowd,
        }

    def order(self, only: str = "") -> list[str]:
        """All faults once whose names have `only` in them, in random order."""
        names = sorted(name for name in self.faults if only in name)
        self._random.shuffle(names)
        return names

    def _role(self) -> str:
        return self._random.choice(["party0", "party1"])

    def _kill(self, role: str) -> None:
        self._deployment.kill(role)
        time.sleep(self._random.uniform(0.0, 1.0))
        self._deployment.start(role)

    def _restart(self, role: str) -> None:
        process = self._deployment.processes[role]
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, f"{role} did not stop cleanly"
        self._deployment.start(role)

    def _freeze(self, role: str) -> None:
        process = self._deployment.processes[role]
        process.send_signal(signal.SIGSTOP)
        time.sleep(self._random.uniform(1.0, 6.0))
        process.send_signal(signal.SIGCONT)

    def _reload(self) -> None:
        for role in ("party0", "party1", "dealer"):
            self._deployment.processes[role].send_signal(signal.SIGHUP)

    def _kits(self) -> list[Path]:
        store = self._deployment.folder / f"store{self._role()[-1]}"
        return list(store.glob("*/ready/*"))

    def _flip(self) -> None:
        for kit in self._kits():
            with contextlib.suppress(OSError), open(kit, "r+b") as file:  # some are taken meanwhile
                place = self._random.randrange(200, max(201, kit.stat().st_size))
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([(byte[0] if byte else 0) ^ 0x40]))
        self._need_the_disk()

    def _delete(self) -> None:
        for kit in self._kits():
            kit.unlink(missing_ok=True)
        self._need_the_disk()

    def _need_the_disk(self) -> None:
        """Use kits up while no others come: those in memory first, then those on disk."""
        dealer = self._deployment.processes["dealer"]
        dealer.send_signal(signal.SIGSTOP)
        use_up(self._deployment)
        dealer.send_signal(signal.SIGCONT)

    def _no_room(self) -> None:
        store = self._deployment.folder / f"store{self._role()[-1]}"
        moved = {folder: folder.with_name("elsewhere") for folder in store.glob("*/incoming")}  # none, just deleted
        for folder, elsewhere in moved.items():
            folder.rename(elsewhere)
        use_up(self._deployment)
        time.sleep(self._random.uniform(0.0, 2.0))
        for folder, elsewhere in moved.items():
            with contextlib.suppress(OSError):
                if folder.exists():
                    folder.rmdir()
                elsewhere.rename(folder)

    def _empty_bundle(self) -> None:
        role = self._role()
        path = self._deployment.folder / "bundle" / role / "shares.safetensors"
        good = path.read_bytes()
        path.write_bytes(b"")
        try:  # the other server starts anew, so that the shares are read again
            self._kill("party1" if role == "party0" else "party0")
            time.sleep(2.0)
        finally:
            path.write_bytes(good)

    def _limit(self, role: str, what: int, value: int) -> None:
        """A process meets a limit of the system, everywhere at once, and is freed of it after a while."""
        pid = self._deployment.processes[role].pid
        before = resource.prlimit(pid, what)
        resource.prlimit(pid, what, (value, before[1]))
        try:
            with contextlib.suppress(AutorepError):  # a server without descriptors turns newcomers away
                use_up(self._deployment)
            time.sleep(self._random.uniform(1.0, 4.0))
        finally:
            resource.prlimit(pid, what, before)

    def _no_descriptors(self) -> None:
        role = self._random.choice(["party0", "party1", "dealer"])
        used = len(list(Path(f"/proc/{self._deployment.processes[role].pid}/fd").iterdir()))
        self._limit(role, resource.RLIMIT_NOFILE, used)

    def _restore(self) -> None:
        """Yesterday's store comes back beside today's record: its kits are used by now."""
        role = self._role()
        store = self._deployment.folder / f"store{role[-1]}"
        copy = store.with_name("yesterday")
        shutil.copytree(store, copy, ignore_dangling_symlinks=True, copy_function=_copied_if_there)
        use_up(self._deployment)
        self._deployment.kill(role)
        shutil.rmtree(store)
        copy.rename(store)
        self._deployment.start(role)

    def _delete_store(self) -> None:
        for folder in (self._deployment.folder / f"store{self._role()[-1]}").iterdir():
            shutil.rmtree(folder, ignore_errors=True)
        use_up(self._deployment)

    def _flood(self, address: str) -> None:
        with Flood(int(address.rpartition(":")[2]), idle=1000, slow=100):
            time.sleep(5.0)

    def _lone_halves(self) -> None:
        """Clients at many addresses send one server halves whose other halves never come."""
        url = self._random.choice(self._deployment.urls)
        over = threading.Event()
        with ThreadPoolExecutor(24) as pool:
            work = [pool.submit(self._send_halves, url, f"127.2.0.{number + 1}", over) for number in range(24)]
            time.sleep(5.0)
            over.set()
            for each in work:
                each.result()

    def _send_halves(self, url: str, address: str, over: threading.Event) -> None:
        body, where = (
            bytes(body_bytes(self._program.input.shape)),
            f"/v1/programs/{program_hash(self._program)}/queries",
        )
        transport = httpx.HTTPTransport(verify=authority(self._deployment.ca), local_address=address)
        with httpx.Client(base_url=url, transport=transport, timeout=20, headers={"Content-Type": CONTENT_TYPE}) as web:
            while not over.is_set():
                with contextlib.suppress(httpx.HTTPError):
                    web.post(f"{where}/{secrets.token_hex(16)}", content=body)

    def _crowd(self) -> None:
        def ask(_: int) -> None:
            with self._deployment.client(patience=0.0) as client:
                client.predict(np.zeros((4, 1, 8, 8)), errors="keep")

        with ThreadPoolExecutor(32) as pool:
            list(pool.map(ask, range(32)))


def _copied_if_there(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):  # used meanwhile
        shutil.copy2(source, target)


def recovered(deployment: LocalDeployment, load: Load, seconds: float) -> float:
    """Seconds until the servers answer again, say that they are well, and have their dealer."""
    started = time.monotonic()
    answers = load.answers
    with httpx.Client(verify=authority(deployment.ca), timeout=5) as web:
        while time.monotonic() - started < seconds:
            with contextlib.suppress(httpx.HTTPError):
                well = all(web.get(f"{url}/healthz").status_code == 200 for url in deployment.urls)
                supplied = all(DEALT.search(web.get(f"{url}/metrics").text) for url in deployment.urls)
                if well and supplied and load.answers >= answers + 3:
                    break
            time.sleep(0.05)
    return time.monotonic() - started


def run(
    program: Program, folder: Path, seconds: float, seed: int, patience: float, only: str = ""
) -> dict[str, object]:
    """Inject faults for so many seconds; returns what happened."""
    recoveries: dict[str, float] = {}
    with LocalDeployment(program, prepare=4, options=OPTIONS, folder=folder) as deployment:
        chaos, deadline, injected = Chaos(deployment, program, seed), time.monotonic() + seconds, 0
        with Load(deployment, program) as load:
            while time.monotonic() < deadline:
                for name in chaos.order(only):
                    if time.monotonic() > deadline:
                        break
                    chaos.faults[name]()
                    injected += 1
                    took = recovered(deployment, load, max(60.0, patience))
                    recoveries[name] = round(max(took, recoveries.get(name, 0.0)), 2)
                    print(f"{name}: back after {took:.1f} s", flush=True)
        used = {role: kits_used(deployment, role) for role in ("party0", "party1")}
    reused = sum(len(kits) - len(set(kits)) for kits in used.values())
    return {
        "seed": seed, "faults": injected, "asked": load.asked, "answered": load.answers,
        "refused": len(load.failures), "lost": load.asked - load.answers - len(load.failures), "wrong": load.wrong,
        "kits_used_twice": reused, "slowest_recovery": recoveries,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--recovery", type=float, default=RECOVERY)
    parser.add_argument("--only", default="", help="faults whose names have this in them")
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autorep-chaos-") as folder:
        result = run(small_program(), Path(folder), settings.seconds, settings.seed, settings.recovery, settings.only)
    print(json.dumps(result, indent=1))
    slow = {name: took for name, took in result["slowest_recovery"].items() if took > settings.recovery}  # type: ignore[attr-defined]
    good = not result["wrong"] and not result["lost"] and not result["kits_used_twice"] and not slow
    print("chaos:", "passed" if good else f"FAILED {slow}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
