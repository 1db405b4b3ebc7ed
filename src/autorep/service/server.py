"""One of the two servers as a process: sessions, links, the client API, and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from autorep.errors import ConfigError
from autorep.mpc.tls import client_context, server_context
from autorep.mpc.transport import Transport
from autorep.mpc.transport_tcp import TcpTransport, connect
from autorep.service.api import Api, ApiSettings
from autorep.service.dealer_link import DealerLink
from autorep.service.follower_links import FollowerSession
from autorep.service.leader_links import LeaderSession
from autorep.service.listener import Listener
from autorep.service.logs import event
from autorep.service.messages import receive_message
from autorep.service.metrics import Metrics
from autorep.service.models import ServedModel
from autorep.service.queries import SessionSettings
from autorep.service.session import Session

_CONNECTIONS = 1024  # open at the same time; beyond, the web server answers 503
_GRACE = 10  # seconds that queries in flight get to finish when the server is told to stop


@dataclass(frozen=True)
class ServerSettings:
    """Everything one server needs to know."""

    party: int
    listen: tuple[str, int]
    peer: tuple[str, int]
    dealer: tuple[str, int] | None
    bundles: tuple[Path, ...]
    store: Path
    keys: Path
    pair: str = "default"
    https_certificate: Path | None = None
    https_key: Path | None = None
    session: SessionSettings = field(default_factory=SessionSettings)
    api: ApiSettings = field(default_factory=ApiSettings)


class Server:
    """Builds the sessions of all programs and serves them until told to stop."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._client_context = client_context(settings.keys)
        self._listener: Listener | None = None
        self._dealers: list[DealerLink] = []
        self.sessions: dict[str, Session] = {}
        for directory in settings.bundles:
            self._add(ServedModel.load(directory, settings.party))
        if not self.sessions:
            raise ConfigError("serve: name at least one --bundle directory; `autorep compile` writes them")
        self.api = Api(settings.party, self.sessions, self.metrics, settings.api)

    def _add(self, model: ServedModel) -> None:
        settings = self.settings
        if model.hash in self.sessions:
            raise ConfigError(f"{model.directory}: the same program is named twice; give each --bundle once")
        folder = settings.store / model.hash[:16]
        arguments = (model.program, model.hash, model.shares, folder, settings.session, self.metrics)
        session: Session
        if settings.party == 0:
            session = LeaderSession(*arguments)
        else:
            session = FollowerSession(*arguments, dial=self._dial_peer)
        self.sessions[model.hash] = session
        if settings.dealer is not None:
            self._dealers.append(DealerLink(session, self._dial_dealer, settings.pair, model.archive))
        elif session.blinding is None:
            raise ConfigError(
                f"serve: no --dealer is given and {folder} holds no prepared material for program "
                f"{model.hash[:16]}…; start a dealer, or run `autorep prepare` and copy its folder here"
            )

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM; queries in flight get a few seconds to finish."""
        settings = self.settings
        certificate = settings.https_certificate or settings.keys / "certificate.pem"
        key = settings.https_key or settings.keys / "key.pem"
        config = uvicorn.Config(
            self.api.app(self._life),
            host=settings.listen[0],
            port=settings.listen[1],
            ssl_certfile=certificate,
            ssl_keyfile=key,
            ssl_context_factory=_modern_tls,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            timeout_keep_alive=75,
            limit_concurrency=_CONNECTIONS,
            ws="none",
        )
        try:
            _Uvicorn(config, self.sessions).run()
        except SystemExit as error:
            if error.code:
                raise ConfigError(
                    f"cannot serve clients at {settings.listen[0]}:{settings.listen[1]}; the log above says why"
                ) from None

    @contextlib.asynccontextmanager
    async def _life(self, _: Any) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        for session in self.sessions.values():
            session.start(loop)
        if self.settings.party == 0:
            context = server_context(self.settings.keys)
            timeout = self.settings.session.timeout
            self._listener = Listener(self.settings.peer, context, {"party1"}, timeout, self._serve_peer)
            self._listener.start()
        for dealer in self._dealers:
            dealer.start()
        event("serving", party=self.settings.party, programs=sorted(self.sessions))
        yield
        for session in self.sessions.values():
            session.stop()
        for dealer in self._dealers:
            dealer.stop()
        if self._listener is not None:
            self._listener.close()
        event("stopped", party=self.settings.party)

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


def _modern_tls(config: uvicorn.Config, default: Any) -> ssl.SSLContext:
    context: ssl.SSLContext = default()
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # browsers and ordinary HTTP clients
    return context
