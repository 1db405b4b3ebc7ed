"""Soak: thousands of queries of the digits network from several clients; every answer checked, memory watched.

Run with `make soak`, or `python tests/service/soak.py --seconds 600 --queries 10000 --clients 4`.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

import autorep
from autorep.errors import AutorepError
from autorep.modes import Program
from autorep.service.local import LocalDeployment

TOLERANCE = 1e-3  # the answers of different images differ by far more, so that none passes for another


def digits_program() -> tuple[Program, np.ndarray]:
    """The digits network with 5 % of its ReLUs (untrained: the arithmetic is the same), and test images."""
    data = autorep.data.load("digits")
    images = (data.test.take(torch.arange(64)).float() / 255).numpy()
    torch.manual_seed(0)
    model = autorep.models.create("digits_net")
    model.train()
    model(torch.from_numpy(images) * 2 - 0.5)  # sensible batch-norm statistics
    model.eval()
    example = torch.from_numpy(images[:1])
    budget = autorep.count_relus(model, example)["total"] // 20
    replacement = autorep.replace_activations_(model, example, budget=budget)
    replacement.calibrate_(model, [torch.from_numpy(images)])
    replacement.finalize_()
    return autorep.compile_program(model.eval(), images, name="digits"), images


def resident(pid: int) -> int:
    """Resident memory in kB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} is gone")


class Soak:
    """Shared state of the clients."""

    def __init__(self, deployment: LocalDeployment, program: Program, images: np.ndarray, queries: int) -> None:
        self.deployment, self.images, self.queries = deployment, images, queries
        self.expected = program.run(images, "fixed")
        self.lock = threading.Lock()
        self.asked = self.answered = self.wrong = self.retries = 0
        self.lost: list[str] = []

    def client(self, deadline: float) -> None:
        with self.deployment.client(concurrency=1, patience=60) as client:
            while time.monotonic() < deadline:
                with self.lock:
                    if self.asked >= self.queries:
                        return
                    self.asked += 1
                    number = self.asked % len(self.images)
                try:
                    (answer,) = client.predict(self.images[number][None])
                except AutorepError as error:
                    with self.lock:
                        self.lost.append(str(error))
                    continue
                with self.lock:
                    self.answered += 1
                    self.retries += answer.attempts - 1
                    self.wrong += int(np.abs(answer.logits - self.expected[number]).max() > TOLERANCE)


def reused(deployment: LocalDeployment) -> int:
    """Kits that a server used more than once."""
    count = 0
    for role in ("party0", "party1"):
        lines = deployment.log(role).read_text(encoding="utf-8").splitlines()
        used = [record["kit"] for record in map(json.loads, lines) if record["event"] == "running"]
        count += len(used) - len(set(used))
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=4)
    settings = parser.parse_args()
    program, images = digits_program()
    with LocalDeployment(program) as deployment:
        soak = Soak(deployment, program, images, settings.queries)
        started = time.monotonic()
        deadline = started + settings.seconds
        samples: dict[str, list[tuple[int, int]]] = {role: [] for role in deployment.processes}
        with ThreadPoolExecutor(settings.clients) as pool:
            work = [pool.submit(soak.client, deadline) for _ in range(settings.clients)]
            while not all(each.done() for each in work):
                for role, process in deployment.processes.items():
                    samples[role].append((soak.answered, resident(process.pid)))
                time.sleep(1.0)
            for each in work:
                each.result()
        elapsed = time.monotonic() - started
        double = reused(deployment)
    growth = {}
    for role, series in samples.items():
        warm = [size for answered, size in series if answered > 0.3 * soak.answered]
        half = len(warm) // 2
        growth[role] = float(np.median(warm[half:]) / np.median(warm[:half]) - 1) if half else 0.0
    result = {
        "asked": soak.asked, "answered": soak.answered, "seconds": round(elapsed, 1),
        "per_second": round(soak.answered / elapsed, 2), "lost": len(soak.lost), "wrong": soak.wrong,
        "retries": soak.retries, "kits_used_twice": double,
        "memory_growth": {role: round(value, 4) for role, value in growth.items()},
        "resident_kb": {role: series[-1][1] for role, series in samples.items() if series},
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    good = not soak.lost and not soak.wrong and not double and all(value < 0.05 for value in growth.values())
    print("soak:", "passed" if good else f"FAILED {soak.lost[:3]}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
