"""One of the two servers as a process: sessions, links, the client API; how it starts, reloads and stops."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import uvicorn

from autorep.errors import AutorepError, ConfigError
from autorep.mpc.choice import chosen
from autorep.mpc.comparisons import ComparisonName
from autorep.mpc.tls import client_context, server_context
from autorep.mpc.transport import Transport
from autorep.mpc.transport_tcp import TcpTransport, connect
from autorep.mpc.two_party.names import check_owners_word
from autorep.service.api import Api, ApiSettings
from autorep.service.blinding import made_together
from autorep.service.dealer_link import DealerLink
from autorep.service.door import SWEEP_SECONDS, Door, DoorSettings
from autorep.service.follower_links import FollowerSession
from autorep.service.leader_links import LeaderSession
from autorep.service.listener import Listener
from autorep.service.logs import crash, event, trouble
from autorep.service.making import Making, MakingSettings
from autorep.service.messages import receive_message
from autorep.service.metrics import Metrics
from autorep.service.models import ServedModel, find_bundles
from autorep.service.queries import SessionSettings
from autorep.service.session import Session
from autorep.service.short_way import ShortWay
from autorep.service.workers import repeat

_TURN = 0.0005  # seconds that a thread computes in Python while another one wants to; a query has a dozen rounds
_GRACE = 10  # seconds that queries in flight get to finish when the server, or a program, is told to stop


@dataclass(frozen=True)
class ServerSettings:
    """Everything one server needs to know.

    `making` is where servers without a dealer meet to make kits, if they do. `comparison` is that of all programs; None
    or auto chooses for each what suits `link` (`mpc/choice.py`).
    """

    party: int
    listen: tuple[str, int]
    peer: tuple[str, int]
    dealer: tuple[str, int] | None
    making: tuple[str, int] | None
    bundles: tuple[Path, ...]
    store: Path
    keys: Path
    pair: str = "default"
    https_certificate: Path | None = None
    https_key: Path | None = None
    session: SessionSettings = field(default_factory=SessionSettings)
    comparison: ComparisonName | Literal["auto"] | None = None
    link: str = "lan"
    api: ApiSettings = field(default_factory=ApiSettings)
    door: DoorSettings = field(default_factory=DoorSettings)

    @property
    def https(self) -> tuple[Path, Path]:
        """Certificate and key shown to clients."""
        return self.https_certificate or self.keys / "certificate.pem", self.https_key or self.keys / "key.pem"


class Server:
    """Builds the sessions of all programs and serves them until told to stop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.sessions: dict[str, Session] = {}
        self.door = Door(settings.door, lambda reason: self.metrics.door.labels(reason).inc())
        self.metrics.connections.set_function(lambda: len(self.door))
        self._dealers: dict[str, DealerLink] = {}
        self._making = self._maker()
        self._client_context = client_context(settings.keys)
        self._https_context: ssl.SSLContext | None = None
        self._reloading = asyncio.Lock()
        for directory in find_bundles(settings.bundles):
            self._add(ServedModel.load(directory, settings.party))
        if not self.sessions:
            raise ConfigError("serve: name at least one --bundle directory; `autorep compile` writes them")
        self.api = Api(settings.party, self.sessions, self.metrics, settings.api, self.ills)
        self._listening = self.door.listen(settings.listen)
        self._listener: Listener | None = None
        if settings.party == 0:
            self._server_context = server_context(settings.keys)
            timeout, crashed = settings.session.timeout, self.metrics.crashes.labels("links").inc
            self._listener = Listener(
                settings.peer, self._server_context, {"party1"}, timeout, self._serve_peer, crashed
            )
        self._note_certificates()

    def _maker(self) -> Making | None:
        settings, session = self.settings, self.settings.session
        if settings.making is None:
            return None
        facts = settings.party, session.preparation, settings.making, settings.keys, session.timeout
        return Making(MakingSettings(*facts), self.metrics.crashes.labels("making").inc)

    def _add(self, model: ServedModel) -> Session:
        settings = self.settings
        if model.hash in self.sessions:
            raise ConfigError(f"{model.directory}: the same program is named twice; give each --bundle once")
        folder, asked = settings.store / model.hash[:16], settings.session
        asked = replace(asked, comparison=chosen(model.program, settings.comparison, asked.preparation, settings.link))
        together = None
        if asked.preparation != "dealer":
            check_owners_word(model.program, asked.preparation)
            together = made_together(model.program, asked.preparation)
        limits = asked.for_kits_of(max(asked.kit_bytes(model.program, party) for party in (0, 1)))
        arguments = (model.program, model.hash, model.shares, folder, limits, self.metrics)
        session: Session
        if settings.party == 0:
            session = LeaderSession(*arguments, made_together=together)
        else:
            session = FollowerSession(*arguments, made_together=together, dial=self._dial_peer)
        if self._making is not None:
            self._making.add(session, model.directory)
        elif settings.dealer is not None:
            self._dealers[model.hash] = DealerLink(session, self._dial_dealer, settings.pair, model.archive)
        elif session.blinding is None:
            raise ConfigError(
                f"serve: no --dealer is given and {folder} holds no prepared material for program "
                f"{model.hash[:16]}…; start a dealer, or run `autorep prepare` and `autorep import` what it wrote"
            )
        self.sessions[model.hash] = session
        return session

    def ills(self) -> dict[str, str]:
        """Workers that do not do their work, and why."""
        found: dict[str, str] = {}
        for session in self.sessions.values():
            found |= session.ills()
        workers = [dealer.worker for dealer in self._dealers.values()]
        workers += [each.worker for each in (self._listener, self._making) if each is not None]
        return found | {worker.name: problem for worker in workers if (problem := worker.problem) is not None}

    # ------------------------------------------------------------------ life

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM; queries in flight get a few seconds to finish. SIGHUP reloads."""
        sys.setswitchinterval(_TURN)  # or a query's thread waits up to 5 ms for those that prepare and store kits
        certificate, key = self.settings.https
        config = uvicorn.Config(
            self.door.layer(self.api.app(self._life)),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            ssl_context_factory=self._modern_tls,
            loop="asyncio",
            http=partial(ShortWay, self.api, self.door),  # type: ignore[arg-type]  # called as a class is
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE,
            timeout_keep_alive=int(self.settings.door.rest_seconds),
        )
        try:
            _Uvicorn(config, self.sessions).run(sockets=[self._listening])
        except SystemExit as error:
            if error.code:
                raise ConfigError("the server could not start; the log above says why") from None

    @contextlib.asynccontextmanager
    async def _life(self, _: Any) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unexpected)
        loop.add_signal_handler(signal.SIGHUP, lambda: loop.create_task(self.reload()))
        crashed = self.metrics.crashes.labels("door").inc
        watching = loop.create_task(repeat("door", self.door.sweep, SWEEP_SECONDS, crashed))
        for name in self.sessions:
            self._start(name)
        if self._listener is not None:
            self._listener.start()
        if self._making is not None:
            self._making.worker.start()
        event("serving", party=self.settings.party, programs=sorted(self.sessions))
        yield
        watching.cancel()
        if self._making is not None:
            self._making.stop()
        for name in self.sessions:
            self._stop(name)
        if self._listener is not None:
            self._listener.close()
        event("stopped", party=self.settings.party)

    def _start(self, name: str) -> None:
        self.sessions[name].start(asyncio.get_running_loop())
        if (dealer := self._dealers.get(name)) is not None:
            dealer.worker.start()

    def _stop(self, name: str) -> None:
        self.sessions[name].stop()
        if (dealer := self._dealers.get(name)) is not None:
            dealer.stop()

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ConnectionError | TimeoutError | ssl.SSLError):
            return  # a client left in the middle of something
        self.metrics.crashes.labels("loop").inc()
        crash("event loop", error if isinstance(error, Exception) else RuntimeError(context.get("message")))

    # ------------------------------------------------------------------ SIGHUP

    async def reload(self) -> None:
        """Read tokens, certificates and the list of programs again; what cannot be read stays as it is."""
        async with self._reloading:
            for what, step in (("tokens", self._reload_tokens), ("certificates", self._reload_certificates)):
                self._outcome(what, step)
            await self._reload_programs()
            if self._making is not None:
                self._making.restart()

    def _outcome(self, what: str, step: Any) -> Any:
        try:
            result = step()
        except (AutorepError, OSError, ValueError) as error:
            self.metrics.reloads.labels("failed").inc()
            trouble("not reloaded", error, what=what)
            return None
        self.metrics.reloads.labels("done").inc()
        event("reloaded", what=what)
        return result

    def _reload_tokens(self) -> None:
        self.api.reload_tokens()

    def _reload_certificates(self) -> None:
        """New connections show the new certificates; those that are open keep the old ones."""
        keys, (certificate, key) = self.settings.keys, self.settings.https
        client_context(keys)  # a trial: a context that fails to load must not be the one in use
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
        contexts = [self._client_context] + ([self._server_context] if self._listener is not None else [])
        for context in contexts:
            context.load_cert_chain(keys / "certificate.pem", keys / "key.pem")
            context.load_verify_locations(keys / "ca.pem")
        if self._https_context is not None:
            self._https_context.load_cert_chain(certificate, key)
        self._note_certificates()

    def _note_certificates(self) -> None:
        self.metrics.certificate("links", self.settings.keys / "certificate.pem")
        self.metrics.certificate("clients", self.settings.https[0])

    async def _reload_programs(self) -> None:
        """Start programs that are new and end those that are gone; the others serve on."""
        loop = asyncio.get_running_loop()
        found = {}
        for directory in find_bundles(self.settings.bundles):
            try:
                model = await loop.run_in_executor(None, ServedModel.load, directory, self.settings.party)
            except (AutorepError, OSError) as error:
                self.metrics.reloads.labels("failed").inc()
                trouble("not reloaded", error, what="program", bundle=str(directory))
                return
            found[model.hash] = model
        for name in found.keys() - self.sessions.keys():
            if self._outcome(f"program {name}", lambda name=name: self._add(found[name])) is not None:
                self._start(name)
        for name in self.sessions.keys() - found.keys():
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        session = self.sessions.pop(name)  # unknown to newcomers from now on
        session.close_door()
        deadline = asyncio.get_running_loop().time() + _GRACE
        while session.machine.running and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        session.stop()
        if (dealer := self._dealers.pop(name, None)) is not None:
            dealer.stop()
        if self._making is not None:
            self._making.remove(name)
        self.metrics.forget(name)
        event("program removed", program=name)

    # ------------------------------------------------------------------ links

    def _serve_peer(self, transport: TcpTransport) -> None:
        """Party 0: a connection of party 1 says which program it is for."""
        greeting = receive_message(transport)
        session = self.sessions.get(str(greeting.get("program")))
        if not isinstance(session, LeaderSession):
            served = ", ".join(name[:16] + "…" for name in self.sessions)
            transport.abort(f"party 0 does not serve program {str(greeting.get('program'))[:16]}…, only {served}")
            return
        session.serve_link(transport, greeting)

    def _dial_peer(self) -> Transport:
        host, port = self.settings.peer
        return connect(host, port, self._client_context, "party0", self.settings.session.timeout)

    def _dial_dealer(self) -> Transport:
        assert self.settings.dealer is not None
        host, port = self.settings.dealer
        return connect(host, port, self._client_context, "dealer", self.settings.session.timeout)

    def _modern_tls(self, config: uvicorn.Config, default: Any) -> ssl.SSLContext:
        context: ssl.SSLContext = default()
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # browsers and ordinary HTTP clients
        self._https_context = context
        return context


class _Uvicorn(uvicorn.Server):
    """The web server; a signal tells the sessions at once, and the process ends with code 0. A second one is harsh."""

    def __init__(self, config: uvicorn.Config, sessions: dict[str, Session]) -> None:
        super().__init__(config)
        self._sessions = sessions

    def handle_exit(self, sig: int, frame: Any) -> None:
        event("stopping", signal=signal.Signals(sig).name)
        for session in self._sessions.values():
            session.post(session.close_door)
        self.force_exit, self.should_exit = self.should_exit, True
