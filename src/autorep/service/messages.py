"""Small JSON messages between servers and dealer, over the same framed links as everything else."""

from __future__ import annotations

import json
from typing import Any

from autorep.errors import ConfigError, ProtocolError
from autorep.mpc.transport import Transport

ALIVE = {"alive": True}


def send_message(transport: Transport, message: dict[str, Any]) -> None:
    """One message, one frame."""
    send_text(transport, text_of(message))


def text_of(message: dict[str, Any]) -> bytes:
    """A message as it travels."""
    return json.dumps(message).encode()


def send_text(transport: Transport, text: bytes) -> None:
    """One message, one frame."""
    transport.send("message", text)


def receive_message(transport: Transport) -> dict[str, Any]:
    """The next message; anything but a JSON object is an error of the protocol."""
    payload = transport.receive("message")
    try:
        message = json.loads(bytes(payload))
    except ValueError:
        message = None
    if not isinstance(message, dict):
        transport.abort("a control message is not a JSON object")
        raise ProtocolError("the peer's control message is not a JSON object; both ends must run the same release")
    return message


def receive_result(transport: Transport) -> dict[str, Any]:
    """The next message that is more than a sign of life."""
    while (message := receive_message(transport)) == ALIVE:
        pass
    return message


def parse_address(text: str, what: str) -> tuple[str, int]:
    """HOST:PORT, with [..] around an IPv6 address."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535 or not host:
        raise ConfigError(f"{what} is {text!r}; expected HOST:PORT, for example 127.0.0.1:9000")
    return host.strip("[]"), int(port)
