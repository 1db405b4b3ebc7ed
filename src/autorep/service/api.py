"""The client API over HTTPS: one half of a query in, this server's share of the answer out.

Status codes: 400 malformed id, 401 token, 404 unknown program, 408/413/415/422 body, 409 id used before, 424 other
half missing, 429 too many queries, 502 the other server failed in the middle, 503 not ready or full (Retry-After).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from autorep.errors import ConfigError
from autorep.mpc.transport import Entry
from autorep.service.limits import RateLimit
from autorep.service.logs import event
from autorep.service.metrics import Metrics
from autorep.service.openapi import document
from autorep.service.queries import Answer, QueryFailure
from autorep.service.session import Session
from autorep.service.shares import CONTENT_TYPE, IMAGES_PER_QUERY, QUERY_ID, body_bytes, read_body, write_body
from autorep.service.tokens import token_hash

_PAGE_FILES = {
    "": "index.html",
    **{name: name for name in ("answers.js", "page.css", "page.js", "pixels.js", "shares.js")},
}
_MEDIA = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript"}
_BODY_SECONDS = 30.0
_BODY_BYTES = 1 << 29  # of all bodies that are on their way together
# What browsers need to know of every answer: only by TLS, and take no type but the one given.
SAFE_HEADERS = ((b"strict-transport-security", b"max-age=31536000"), (b"x-content-type-options", b"nosniff"))
_EXPOSED = ("Retry-After", "Autorep-Statuses", "Autorep-Seconds", "Autorep-Sent-Bytes", "Autorep-Rounds")


@dataclass(frozen=True)
class ApiSettings:
    """Who may ask, how often, and from where.

    Attributes:
        tokens: JSON file, client name -> SHA-256 (hex) of its token; None lets everybody ask.
        rate: images a second for each client; 0 sets no limit.
        burst: images a client may send at once before the rate counts.
        servers: public URLs of server 0 and server 1, which the browser page posts to.
        origins: further web origins whose pages may post here.
        pair: name of this pair of servers; a balancer sends what bears it to them.
        proxies: addresses of reverse proxies whose X-Forwarded-For is believed.
    """

    tokens: Path | None = None
    rate: float = 0.0
    burst: int = 20
    servers: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()
    pair: str = "default"


class Asked(Protocol):
    """What of a request says who asks, and for what."""

    @property
    def path_params(self) -> Mapping[str, str]: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def client(self) -> Any: ...


class Api:
    """Routes of one server."""

    def __init__(
        self,
        party: int,
        sessions: Mapping[str, Session],
        metrics: Metrics,
        settings: ApiSettings,
        ills: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._party, self._sessions, self._metrics, self._settings = party, sessions, metrics, settings
        self._ills = ills
        self._rates: RateLimit | None = None
        self._arriving = 0  # bytes of bodies that are not complete
        self.reload_tokens()

    def reload_tokens(self) -> None:
        """Read the token file again; from then on it alone counts."""
        self._tokens = None if self._settings.tokens is None else read_tokens(self._settings.tokens)

    def app(self, life: Callable[[Any], Any] | None = None) -> Starlette:
        """The ASGI application."""
        query = "/v1/programs/{program}/queries/{query}"
        routes = [
            Route("/healthz", self.health),
            Route("/readyz", self.ready),
            Route("/readyz/{program}", self.ready_program),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
            Route("/v1/deployment", self.deployment),
            Route("/v1/programs", self.programs),
            Route("/v1/programs/{program}", self.program),
            Route(query, self.answer, methods=["POST"]),
            Route(query, self.withdraw, methods=["DELETE"]),
            *(Route(f"/{path}", self.page) for path in _PAGE_FILES),
        ]
        origins = [url.rstrip("/") for url in (*self._settings.servers, *self._settings.origins)]
        cors = Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Autorep-Pair", "Content-Type"],
            expose_headers=[*_EXPOSED, "Autorep-Offline-Bytes"],
            max_age=600,
        )
        app = Starlette(
            routes=routes,
            middleware=[Middleware(_SafeHeaders), *([cors] if origins else [])],
            lifespan=life,
            exception_handlers={404: _not_found, 405: _wrong_method},
        )
        app.router.redirect_slashes = False  # an address is right or wrong
        return app

    # ------------------------------------------------------------------ queries

    async def answer(self, request: Request) -> Response:
        """Take one half of a query and wait for this server's share of the answer."""
        try:
            self._client(request)
            session, _ = self._address(request)
            body = await self._body(request, body_bytes(session.program.input.shape))
            queries = self.begin(request, body)
            await _unless_gone(request, queries)
        except QueryFailure as failure:
            return self.refused(request, failure)
        except ClientDisconnect:
            return Response(status_code=499)
        return self.response(queries)

    def takes(self, asked: Asked, length: int) -> bool:
        """Whether a body of this length may be handed in to a program served here."""
        session = self._sessions.get(asked.path_params["program"])
        if session is None:
            return False
        image = body_bytes(session.program.input.shape)
        return 0 < length <= IMAGES_PER_QUERY * image and not length % image

    def begin(self, asked: Asked, body: bytes) -> list[asyncio.Future[Answer]]:
        """Hand in the posted shares of some images, whose number is right; raises QueryFailure, or see `submit`."""
        client = self._client(asked)
        session, query_id = self._address(asked)
        payer = client if self._tokens is not None else self._sender(asked)
        shares = read_body(body, session.program.input.shape)
        self._limit_rate(session, client, query_id, payer, len(shares))
        return session.submit(client, query_id, shares, payer)

    def response(self, queries: Sequence[asyncio.Future[Answer]]) -> Response:
        """The answer to a request all of whose queries have ended."""
        return _response([_outcome(query) for query in queries])

    async def withdraw(self, request: Request) -> Response:
        """Give up one half of a query, because the other one was refused."""
        try:
            client = self._client(request)
            session, query_id = self._address(request)
        except QueryFailure as failure:
            return self.refused(request, failure)
        session.withdraw(client, query_id)
        return Response(status_code=204)

    def refused(self, asked: Asked, failure: QueryFailure) -> Response:
        """Counted and logged: somebody was turned away before a program saw the request."""
        self._metrics.refused_at_door(failure)
        event("refused", status=failure.status, reason=failure.message, address=self._sender(asked))
        return _refusal(failure)

    def _sender(self, request: Asked) -> str:
        """The network a request comes from: an IPv4 address, or the first half of an IPv6 one."""
        address = request.client.host if request.client else ""
        if address in self._settings.proxies:
            address = request.headers.get("x-forwarded-for", address).rpartition(",")[2].strip()
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return "unknown"
        return str(found) if found.version == 4 else str(ipaddress.ip_network(f"{found}/64", strict=False))

    def _client(self, request: Asked) -> str:
        """The name of the client whose token this is."""
        if self._tokens is None:
            return "anonymous"
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = token_hash(token.strip())
        found = ""
        for name, known in self._tokens.items():  # all of them, so that the time says nothing
            if hmac.compare_digest(known, digest):
                found = name
        if scheme.lower() != "bearer" or not found:
            problem = "no valid token for this server; send the header `Authorization: Bearer TOKEN`"
            raise QueryFailure(401, problem, None, "token")
        return found

    def _address(self, request: Asked) -> tuple[Session, str]:
        query_id = request.path_params["query"]
        session = self._session(request)
        if not QUERY_ID.fullmatch(query_id):
            raise QueryFailure(400, "the query id must be 32 lower-case hexadecimal digits, drawn at random")
        return session, query_id

    def _session(self, request: Asked) -> Session:
        name = request.path_params["program"]
        if name not in self._sessions:
            served = ", ".join(sorted(self._sessions))
            raise QueryFailure(404, f"this server does not serve that program; it serves {served}")
        return self._sessions[name]

    async def _body(self, request: Request, image: int) -> bytes:
        """The posted shares of some images, `image` bytes each."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != CONTENT_TYPE:
            raise QueryFailure(415, f"the body must be shares sent as {CONTENT_TYPE}")
        limit = IMAGES_PER_QUERY * image
        too_long = f"the body has more than {limit} bytes: shares of at most {IMAGES_PER_QUERY} images of {image} bytes"
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > limit:
            raise QueryFailure(413, too_long)
        body = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    self._arriving += len(chunk)
                    if len(body) > limit:
                        raise QueryFailure(413, too_long)
                    if self._arriving > max(_BODY_BYTES, limit):
                        raise QueryFailure(503, "too much arrives at once; ask again in a moment", 1, "bodies")
        except TimeoutError:
            raise QueryFailure(408, f"the body did not arrive within {_BODY_SECONDS:g} s") from None
        finally:
            self._arriving -= len(body)
        if not body or len(body) % image:
            raise QueryFailure(422, f"the body has {len(body)} bytes; a share of one image has {image}")
        return bytes(body)

    def _limit_rate(self, session: Session, client: str, query_id: str, payer: str, images: int) -> None:
        """Refuse what is too fast, and tell the other server, where the same query may have been in time."""
        if self._rates is None:
            clock = asyncio.get_running_loop().time
            self._rates = RateLimit(self._settings.rate, self._settings.burst, clock)
        wait = self._rates.wait(payer, images)
        if wait > 0:
            failure = QueryFailure(429, f"more than {self._settings.rate:g} images a second", wait, "rate")
            session.turned_away(client, query_id, images, failure)
            raise failure

    # ------------------------------------------------------------------ facts

    async def health(self, request: Request) -> Response:
        """The process runs, and so does every worker in it."""
        ills = dict(self._ills())
        status = {"status": "ill" if ills else "ok", "party": self._party}
        return JSONResponse({**status, "ills": ills} if ills else status, 503 if ills else 200)

    async def ready(self, request: Request) -> Response:
        """Whether a query would be answered now, program by program."""
        states = {name: _readiness(session) for name, session in self._sessions.items()}
        everything = all(state["ready"] for state in states.values())
        return JSONResponse({"ready": everything, "programs": states}, 200 if everything else 503)

    async def ready_program(self, request: Request) -> Response:
        """Whether a query to one program would be answered now."""
        try:
            state = _readiness(self._session(request))
        except QueryFailure as failure:
            return _refusal(failure)
        return JSONResponse(state, 200 if state["ready"] else 503)

    async def metrics(self, request: Request) -> Response:
        """Counters for Prometheus."""
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        """This API's own description."""
        return JSONResponse(document())

    async def deployment(self, request: Request) -> Response:
        """Which server this is, and where both are."""
        ready = all(_readiness(session)["ready"] for session in self._sessions.values())
        facts = {"party": self._party, "servers": list(self._settings.servers)}
        return JSONResponse({**facts, "pair": self._settings.pair, "ready": ready})

    async def programs(self, request: Request) -> Response:
        """Every program served here."""
        return JSONResponse({"programs": [describe(session) for session in self._sessions.values()]})

    async def program(self, request: Request) -> Response:
        """One program."""
        try:
            return JSONResponse(describe(self._session(request)))
        except QueryFailure as failure:
            return _refusal(failure)

    async def page(self, request: Request) -> Response:
        """The browser client."""
        name = _PAGE_FILES[request.url.path.lstrip("/")]
        data = (resources.files("autorep.service") / "page" / name).read_bytes()
        servers = " ".join(self._settings.servers)
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
            f"connect-src 'self' {servers}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
        return Response(data, media_type=_MEDIA[name.rpartition(".")[2]], headers=headers)


def describe(session: Session) -> dict[str, Any]:
    """What a client must know about a program: its hash, input and output formats, and the owner's public notes."""
    program = session.program
    first, last = program.input, program.output
    return {
        "program": session.hash,
        "model_id": program.model_id,
        "input": {"shape": list(first.shape), "frac": first.frac, "bits": 64},
        "output": {"shape": list(last.shape), "frac": last.frac, "bits": last.bits},
        "relus": program.relu_count,
        "info": _finite(dict(program.info)),
    }


def read_tokens(path: Path) -> dict[str, str]:
    """Client names and the SHA-256 of the tokens they send to this server."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read the tokens ({error}); `autorep keys` writes such a file") from None
    hexadecimal = set("0123456789abcdef")
    for name, digest in values.items() if isinstance(values, dict) else [("", None)]:
        if not isinstance(digest, str) or len(digest) != 64 or not set(digest) <= hexadecimal:
            raise ConfigError(f"{path}: expected {{client name: SHA-256 in hex}}, found {name!r}: …")
    return values


def _response(outcomes: Sequence[Answer | QueryFailure]) -> Response:
    """Shares of the answers, in order; where some images failed, zeros stand in their place and a status says so."""
    answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, QueryFailure)]
    if not answers:
        return _refusal(failures[0])
    nothing = Answer(np.zeros_like(answers[0].share), 0.0, Entry(), 0)
    filled = [outcome if isinstance(outcome, Answer) else nothing for outcome in outcomes]
    headers = {
        "Autorep-Seconds": ",".join(f"{answer.seconds:.6f}" for answer in filled),
        "Autorep-Sent-Bytes": ",".join(str(answer.traffic.sent) for answer in filled),
        "Autorep-Rounds": ",".join(str(answer.traffic.rounds) for answer in filled),
        "Autorep-Offline-Bytes": ",".join(str(answer.offline_bytes) for answer in filled),
        "Cache-Control": "no-store",
    }
    if failures:
        statuses = (200 if isinstance(outcome, Answer) else outcome.status for outcome in outcomes)
        headers["Autorep-Statuses"] = ",".join(map(str, statuses))
        headers["Retry-After"] = _seconds(max(failure.retry_after or 0.0 for failure in failures))
    body = b"".join(write_body(answer.share) for answer in filled)
    return Response(body, media_type=CONTENT_TYPE, headers=headers)


async def _unless_gone(request: Request, queries: Sequence[asyncio.Future[Answer]]) -> None:
    """Wait until every query has ended, unless the client leaves before; then all are withdrawn."""
    gone = asyncio.ensure_future(request.receive())
    gone.add_done_callback(lambda _: [query.cancel() for query in queries])
    try:
        for query in queries:
            with contextlib.suppress(QueryFailure):
                await query
    except asyncio.CancelledError:
        if not gone.done():
            raise  # it is this request that was cancelled
        raise ClientDisconnect from None
    finally:
        gone.cancel()


def _outcome(query: asyncio.Future[Answer]) -> Answer | QueryFailure:
    failure = query.exception()
    if failure is None:
        return query.result()
    if isinstance(failure, QueryFailure):
        return failure
    raise failure


def _readiness(session: Session) -> dict[str, Any]:
    """One program: ready when nothing is wrong and there is a kit for one more query, prepared or not."""
    machine = session.machine
    with session.turn:
        problems, supplied, kits, stored = dict(machine.problems), machine.supplied, machine.ready, len(machine.stored)
    if not problems and not supplied:
        problems["material"] = session.shortage()
    return {"ready": not problems, "problems": problems, "kits": kits, "stored": stored}


class _SafeHeaders:
    """Adds SAFE_HEADERS to every answer."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SAFE_HEADERS]
            await send(message)

        await self._app(scope, receive, sent)


def _seconds(wait: float) -> str:
    """For Retry-After: whole seconds, at least one."""
    return str(max(1, math.ceil(wait)))


def _refusal(failure: QueryFailure) -> Response:
    headers = {}
    if failure.retry_after is not None:
        headers["Retry-After"] = _seconds(failure.retry_after)
    if failure.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    retry = failure.status in (424, 429, 502, 503)
    body = {"status": failure.status, "message": failure.message, "retry_with_new_masks": retry}
    return JSONResponse(body, failure.status, headers)


async def _not_found(request: Request, error: Exception) -> Response:
    return _refusal(QueryFailure(404, "there is nothing at this address; /openapi.json lists what there is"))


async def _wrong_method(request: Request, error: Exception) -> Response:
    response = _refusal(QueryFailure(405, "this address does not take that method; see /openapi.json"))
    response.headers.update(getattr(error, "headers", None) or {})
    return response


def _finite(value: Any) -> Any:
    """JSON has no infinities; calibration notes may."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
