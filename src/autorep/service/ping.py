"""Checks of the links of a deployment, each with a plain word for what is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from autorep.errors import AutorepError, ConfigError
from autorep.mpc.tls import client_context
from autorep.mpc.transport import handshake
from autorep.mpc.transport_tcp import connect
from autorep.program.files import load_public, program_hash
from autorep.service.client import authority, https_only
from autorep.service.dealer_link import DEALER_HELLO
from autorep.service.messages import parse_address, receive_message, send_message


@dataclass(frozen=True)
class LinkState:
    """One link: reached or not, and in one word why not."""

    name: str
    ok: bool
    kind: str
    text: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def check_links(
    keys: Path, servers: Sequence[str], peer: str | None, dealer: str | None, bundle: Path | None, timeout: float
) -> list[LinkState]:
    """Check the links that are named, as the role whose keys are given."""
    program = None if bundle is None else program_hash(load_public(bundle / "public"))
    results = []
    if len(servers) not in (0, 2):
        raise ConfigError(f"ping: {len(servers)} servers named; give both, server 0 first")
    for index, url in enumerate(servers):
        https_only(url, "ping")
        results.append(_timed(f"server {index} {url}", partial(_server, keys, index, url, program, timeout)))
    if peer is not None:
        results.append(_timed(f"peer {peer}", partial(_peer, keys, peer, program, timeout)))
    if dealer is not None:
        results.append(_timed(f"dealer {dealer}", partial(_dealer, keys, dealer, timeout)))
    return results


def _timed(name: str, check: Callable[[], str]) -> LinkState:
    started = time.perf_counter()
    try:
        text, ok, kind = check(), True, "ok"
    except (AutorepError, httpx.HTTPError) as error:
        text, ok, kind = str(error) or type(error).__name__, False, _kind(error)
    return LinkState(name, ok, kind, text, time.perf_counter() - started)


def _kind(error: Exception) -> str:
    """One word for what is wrong."""
    text = str(error).lower()
    if isinstance(error, httpx.TimeoutException) or "no answer within" in text or "no tls handshake" in text:
        return "timeout"
    if "certificate" in text or "tls handshake" in text or "ssl" in text:
        return "certificate"
    if "program" in text:
        return "program"
    if "protocol" in text or "release" in text:
        return "version"
    if "refused" in text or "cannot connect" in text:
        return "refused"
    return "not ready"


def _server(keys: Path, index: int, url: str, program: str | None, timeout: float) -> str:
    with httpx.Client(base_url=url, verify=authority(keys / "ca.pem"), timeout=timeout) as web:
        party = web.get("/v1/deployment").json().get("party")
        if party != index:
            raise ConfigError(f"this is server {party}, not {index}; swap the addresses")
        served = [entry["program"] for entry in web.get("/v1/programs").json()["programs"]]
        if program is not None and program not in served:
            raise ConfigError(f"serves another program ({served[0][:16]}…) than the one named ({program[:16]}…)")
        ready = web.get("/readyz")
    if ready.status_code != 200:
        problems = {name: state["problems"] for name, state in ready.json()["programs"].items()}
        raise ConfigError(f"runs, but is not ready: {problems}")
    return f"ready, {len(served)} program(s)"


def _peer(keys: Path, address: str, program: str | None, timeout: float) -> str:
    if program is None:
        raise ConfigError("name the program with --bundle to check the peer")
    host, port = parse_address(address, "--peer")
    transport = connect(host, port, client_context(keys), "party0", timeout, timeout)
    try:
        send_message(transport, {"kind": "probe", "program": program})
        state = receive_message(transport)
    finally:
        transport.close()
    return f"party 0 serves this program; {state.get('state', '')}"


def _dealer(keys: Path, address: str, timeout: float) -> str:
    host, port = parse_address(address, "--dealer")
    transport = connect(host, port, client_context(keys), "dealer", timeout, timeout)
    try:
        handshake(transport, DEALER_HELLO)
    finally:
        transport.close()
    return "the dealer answers"
