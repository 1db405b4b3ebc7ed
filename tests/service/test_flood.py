"""2,000 idle and 200 slow connections: clients are answered, health stays true."""

from __future__ import annotations

import time

import httpx
import numpy as np

from autorep.modes import Program
from autorep.service.local import LocalDeployment
from autorep.service.web import authority
from tests.service.flood import Flood


def test_flood_of_idle_and_slow_connections_keeps_nobody_out(program: Program) -> None:
    image = np.random.default_rng(0).random((1, 1, 8, 8))
    expected = program.run(image, "fixed")
    with (
        LocalDeployment(program, prepare=4) as deployment,
        httpx.Client(verify=authority(deployment.ca), timeout=100) as web,
        deployment.client(patience=0) as client,
    ):

        def ask() -> float:
            """Seconds of two predictions, one by a newcomer with connections of its own; who is kept out fails."""
            started = time.monotonic()
            with deployment.client(patience=0) as newcomer:
                assert np.abs(newcomer.logits(image) - expected).max() < 1e-3
            assert np.abs(client.logits(image) - expected).max() < 1e-3
            return time.monotonic() - started

        usual = max(ask() for _ in range(5))
        port = int(deployment.urls[0].rpartition(":")[2])
        slowest = 0.0
        with Flood(port, idle=2000, slow=200) as flood:
            _open_all(flood, 2200)
            for _ in range(10):
                slowest = max(slowest, ask())
                assert web.get(f"{deployment.urls[0]}/healthz").status_code == 200
                time.sleep(0.1)
        print(f"slowest answers {slowest:.2f} s, before the flood {usual:.2f} s")  # more says how busy the machine is
        text = web.get(f"{deployment.urls[0]}/metrics").text
        assert 'autorep_connections_closed_total{reason="full"}' in text
        started = time.monotonic()
        while _connections(web, deployment.urls[0]) > 10:
            assert time.monotonic() - started < 100, "the flood is over, its connections are not"
            time.sleep(0.1)


def _open_all(flood: Flood, count: int) -> None:
    """Wait for so many connections; it fails when no further one gets in."""
    while (seen := flood.opened) < count:
        deadline = time.monotonic() + 100
        while flood.opened == seen:
            assert time.monotonic() < deadline, f"only {seen} connections got in"
            time.sleep(0.05)


def _connections(web: httpx.Client, url: str) -> float:
    lines = web.get(f"{url}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("autorep_connections "))
