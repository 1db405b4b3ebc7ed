"""Messages between the benchmark and its party processes: a JSON object and raw blobs, over a local socket."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

from autorep.errors import ProtocolError


def send(connection: Connection, message: dict[str, Any], *blobs: Any) -> None:
    """One message; blobs are anything with a contiguous buffer."""
    connection.send_bytes(json.dumps({**message, "blobs": len(blobs)}).encode())
    for blob in blobs:
        connection.send_bytes(memoryview(blob).cast("B"))


def receive(connection: Connection) -> tuple[dict[str, Any], list[bytes]]:
    """The next message; an `error` that the other end reported is raised here."""
    try:
        message = json.loads(connection.recv_bytes())
        blobs = [connection.recv_bytes() for _ in range(message.pop("blobs"))]
    except EOFError:
        raise ProtocolError("a party process of the benchmark ended; its error is above") from None
    if "error" in message:
        raise ProtocolError(f"party process: {message['error']}")
    return message, blobs
