"""How fast one core each moves bytes between two processes on loopback, both ways at once: our link beside TLS and TCP.

`python -m autorep.bench.link FD` is one of the two processes. Each measures the median of its exchanges: by the clock,
which says what the machine gave, and by its own processor time, which says what a core of its own would give.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from autorep import _native
from autorep.bench.processes import TIMEOUT, Processes, linked, meet, receive, send
from autorep.mpc import tls

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
WAYS = ("link", "tls", "tcp")
_RECORD = 16384  # TLS: one call moves at most this much

Exchange = Callable[[memoryview, int], Any]


def measure(sizes: tuple[int, ...] = SIZES, repeats: int = 30) -> dict[str, Any]:
    """Bytes a second in each direction, for messages of several sizes."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="autorep-bench-") as folder:
        tls.make_keys(Path(folder), {})
        for way in WAYS:
            for size in sizes:
                found = _pair(folder, way, size, repeats)
                seconds, cpu = (max(party[field] for party in found) for field in ("seconds", "cpu_seconds"))
                rows.append({"way": way, "bytes": size, "seconds": seconds, "cpu_seconds": cpu, "rate": size / seconds,
                             "rate_of_a_core": size / cpu})  # fmt: skip
    return {"repeats": repeats, "openssl": ssl.OPENSSL_VERSION, "kernel_tls": _kernel_tls(), "rows": rows}


def _kernel_tls() -> bool:
    """Whether the system could encrypt TLS records itself; this needs its `tls` module and Python's OP_ENABLE_KTLS."""
    names = Path("/proc/sys/net/ipv4/tcp_available_ulp")
    return names.exists() and "tls" in names.read_text().split() and hasattr(ssl, "OP_ENABLE_KTLS")


def _pair(folder: str, way: str, size: int, repeats: int) -> list[dict[str, Any]]:
    cores = sorted(os.sched_getaffinity(0))
    common = {"folder": folder, "way": way, "size": size, "repeats": repeats}
    with Processes(["-m", "autorep.bench.link"]) as processes:
        processes.send([common | {"party": party, "core": cores[party % len(cores)]} for party in (0, 1)])
        processes.introduce()
        return processes.gather()[0]


def _serve(control: Connection) -> None:
    """One end: connect, warm up, exchange, answer."""
    task = receive(control)[0]
    os.sched_setaffinity(0, [task["core"]])
    _native.keep_freed_memory()
    exchange = _exchange(task["way"], *meet(control, task["party"]), Path(task["folder"]))
    message = np.random.default_rng(task["party"]).integers(0, 256, task["size"], np.uint8).data
    times = []
    for _ in range(task["repeats"] + 3):
        started, cpu = time.perf_counter(), time.thread_time()
        exchange(message, task["size"])
        times.append((time.perf_counter() - started, time.thread_time() - cpu))
    seconds, busy = (statistics.median(column) for column in zip(*times[3:]))
    send(control, {"seconds": seconds, "cpu_seconds": busy})
    receive(control)


def _exchange(way: str, raw: socket.socket | None, port: int, keys: Path) -> Exchange:
    """Party 0 has an accepted connection, party 1 the port to connect to."""
    if way == "link":
        link = linked(raw, port, keys)
        return lambda message, expect: link.exchange("bench", message, expect)
    plain = raw or socket.create_connection(("127.0.0.1", port), TIMEOUT)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if way == "tcp":
        return _alternating(plain, 1 << 18)
    context = tls.server_context(keys / "party0") if raw else tls.client_context(keys / "party1")
    return _alternating(
        context.wrap_socket(plain, server_side=raw is not None, server_hostname=None if raw else "party0"), _RECORD
    )


def _alternating(connection: socket.socket, most: int) -> Exchange:
    """Send and receive in turns, at most `most` bytes a call, on a socket of either kind."""
    connection.setblocking(False)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    busy = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

    def exchange(message: memoryview, expect: int) -> memoryview:
        outgoing, answer = message, np.empty(expect, np.uint8).data
        incoming = answer
        while len(outgoing) or len(incoming):
            left = len(outgoing) + len(incoming)
            with suppress(*busy):
                for _ in range(16):
                    if len(outgoing):
                        outgoing = outgoing[connection.send(outgoing[:most]) :]
            with suppress(*busy):
                for _ in range(16):
                    if len(incoming):
                        incoming = incoming[connection.recv_into(incoming) :]
            if left == len(outgoing) + len(incoming):
                poll.modify(connection, select.POLLIN | (select.POLLOUT if len(outgoing) else 0))
                poll.poll(TIMEOUT * 1000)
        return answer

    return exchange


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
