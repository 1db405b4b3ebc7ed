"""Ports of a deployment on this machine: nobody else gets them before its servers listen, or while one is away."""

from __future__ import annotations

import socket

import pytest

from autorep.service import local


def test_a_held_port_is_listened_on_again_and_again_and_found_free_by_nobody() -> None:
    (held,) = local.hold_ports(1)
    with held:
        address = held.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        for _ in range(2):
            with socket.create_server(address) as server, socket.create_connection(address):
                server.accept()[0].close()
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(address)


def test_ports_that_are_held_or_taken_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    (held,) = local.hold_ports(1)
    taken = held.getsockname()[1] - 20_000
    drawn = iter([taken, taken, (taken + 1) % 12_000, *range(12_000)])
    monkeypatch.setattr(local.secrets, "randbelow", lambda _: next(drawn))
    (other,) = local.hold_ports(1)
    assert other.getsockname()[1] != held.getsockname()[1]
    held.close()
    other.close()
