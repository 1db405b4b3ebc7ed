"""Checks of the links of a deployment, each with a plain word for what is wrong."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from autorep.errors import AutorepError, CertificateError, ConfigError, PeerAbort
from autorep.mpc.tls import client_context
from autorep.mpc.transport import handshake
from autorep.mpc.transport_tcp import connect
from autorep.program.files import load_public, program_hash
from autorep.service.dealer_link import DEALER_HELLO
from autorep.service.messages import parse_address, receive_message, send_message
from autorep.service.web import authority, https_only


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


@dataclass(frozen=True)
class Links:
    """What to check: URLs of both servers or of none, and HOST:PORT of what servers connect to."""

    servers: Sequence[str] = ()
    peer: str | None = None
    dealer: str | None = None
    making: str | None = None


def check_links(keys: Path, links: Links, bundle: Path | None, timeout: float) -> list[LinkState]:
    """Check the links that are named, as the role whose keys are given."""
    servers = links.servers
    program = None if bundle is None else program_hash(load_public(bundle / "public"))
    results = []
    if len(servers) not in (0, 2):
        raise ConfigError(f"ping: {len(servers)} servers named; give both, server 0 first")
    for index, url in enumerate(servers):
        https_only(url, "ping")
        results.append(_timed(f"server {index} {url}", partial(_server, keys, index, url, program, timeout)))
    if links.peer is not None:
        results.append(_timed(f"peer {links.peer}", partial(_peer, keys, links.peer, program, timeout)))
    if links.making is not None:
        results.append(_timed(f"making {links.making}", partial(_making, keys, links.making, program, timeout)))
    if links.dealer is not None:
        results.append(_timed(f"dealer {links.dealer}", partial(_dealer, keys, links.dealer, timeout)))
    return results


class _Problem(AutorepError):
    """A link that works as a link, with something wrong at its other end."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def _timed(name: str, check: Callable[[], str]) -> LinkState:
    started = time.perf_counter()
    try:
        text, ok, kind = check(), True, "ok"
    except (AutorepError, httpx.HTTPError, ValueError, KeyError) as error:
        text, ok, kind = str(error) or type(error).__name__, False, _kind(error)
    return LinkState(name, ok, kind, text, time.perf_counter() - started)


def _kind(error: BaseException) -> str:
    """One word for what is wrong, from the types of the error and of what caused it."""
    if isinstance(error, _Problem):
        return error.kind
    causes = [error]
    while (deeper := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(deeper)
    for kind, types in (
        ("timeout", (TimeoutError, httpx.TimeoutException)),
        ("certificate", (ssl.SSLError, CertificateError)),
        ("refused", (OSError, httpx.ConnectError)),
    ):
        if any(isinstance(cause, types) for cause in causes):
            return kind
    return "version"  # somebody answered, in words this release does not understand


def _server(keys: Path, index: int, url: str, program: str | None, timeout: float) -> str:
    with httpx.Client(base_url=url, verify=authority(keys / "ca.pem"), timeout=timeout) as web:
        party = web.get("/v1/deployment").json().get("party")
        if party != index:
            raise _Problem("swapped", f"this is server {party}, not {index}; swap the addresses")
        served = [entry["program"] for entry in web.get("/v1/programs").json()["programs"]]
        if program is not None and program not in served:
            raise _Problem("program", f"serves program {served[0][:16]}…, not the one named ({program[:16]}…)")
        ready = web.get("/readyz")
    if ready.status_code != 200:
        problems = {name: state["problems"] for name, state in ready.json()["programs"].items()}
        raise _Problem("not ready", f"runs, but is not ready: {problems}")
    return f"ready, {len(served)} program(s)"


def _peer(keys: Path, address: str, program: str | None, timeout: float) -> str:
    return f"party 0 serves this program; {_probe(keys, parse_address(address, '--peer'), program, timeout)}"


def _making(keys: Path, address: str, program: str | None, timeout: float) -> str:
    return f"party 0 {_probe(keys, parse_address(address, '--making'), program, timeout)}"


def _probe(keys: Path, address: tuple[str, int], program: str | None, timeout: float) -> str:
    """What party 0 says about a program."""
    if program is None:
        raise ConfigError("name the program with --bundle to check party 0")
    transport = connect(*address, client_context(keys), "party0", timeout, timeout)
    try:
        send_message(transport, {"kind": "probe", "program": program})
        return str(receive_message(transport).get("state", ""))
    except PeerAbort as error:  # the one thing it does not like about a probe
        raise _Problem("program", str(error)) from None
    finally:
        transport.close()


def _dealer(keys: Path, address: str, timeout: float) -> str:
    host, port = parse_address(address, "--dealer")
    transport = connect(host, port, client_context(keys), "dealer", timeout, timeout)
    try:
        handshake(transport, DEALER_HELLO)
    finally:
        transport.close()
    return "the dealer answers"
