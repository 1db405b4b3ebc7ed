"""How a client talks to one server over HTTPS; every failure becomes a `Refused` or one of the project's errors."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

from autorep.errors import ConfigError, HandshakeError, ProtocolError
from autorep.service.answers import Part
from autorep.service.http1 import Connections, HttpError, Response
from autorep.service.shares import CONTENT_TYPE


class Refused(Exception):
    """A server did not answer: status as in HTTP (503 when it was not reached), and seconds to wait."""

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after

    @property
    def passing(self) -> bool:
        """Whether the same image, asked anew, may well be answered."""
        return self.status in (424, 429, 502, 503)


def connections(url: str, token: str | None, trusted: ssl.SSLContext, timeout: float) -> Connections:
    """Connections to one server, opened as needed and kept."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return Connections(https_only(url, "client"), trusted, headers, timeout)


async def post(
    server: Connections, path: str, body: bytes, images: int, pair: str | None = None
) -> list[Part | Refused]:
    """Send this server's shares of some images under one query id; one outcome for each."""
    try:
        response = await server.request("POST", path, {"Content-Type": CONTENT_TYPE, **_to(pair)}, body)
    except HttpError as error:
        raise Refused(503, f"{server.base_url}: {_reason(error)}") from None
    wait = response.headers.get("retry-after", "0")
    seconds = float(wait) if wait.isdigit() else 0.0
    if response.status != 200:
        message = f"{server.base_url}: {response.status}: {_explanation(response)}"
        if response.status == 401:
            message = f"{server.base_url}: {_about_token(server)}"
        raise Refused(response.status, message, seconds)

    def header(name: str, default: str) -> list[str]:
        values = response.headers.get(f"autorep-{name}", default).split(",")
        return values if len(values) == images else images * [default]

    size = len(response.content) // images
    facts = zip(header("seconds", "0"), header("sent-bytes", "0"), header("rounds", "0"), header("offline-bytes", "0"))
    outcomes: list[Part | Refused] = []
    for number, (status, fact) in enumerate(zip(header("statuses", "200"), facts)):
        if status == "200":
            share = response.content[number * size : (number + 1) * size]
            outcomes.append(Part(share, float(fact[0]), int(fact[1]), int(fact[2]), int(fact[3])))
        else:
            message = f"{server.base_url}: {status}: image {number + 1} of {images} was not answered"
            outcomes.append(Refused(int(status), message, seconds))
    return outcomes


async def withdraw(server: Connections, path: str, pair: str | None = None) -> None:
    """Give up one half; where that fails too, it expires by itself."""
    with contextlib.suppress(HttpError):
        await server.request("DELETE", path, _to(pair))


async def get(server: Connections, path: str, pair: str | None = None) -> dict[str, Any]:
    """A public fact."""
    try:
        response = await server.request("GET", path, _to(pair))
    except HttpError as error:
        raise ProtocolError(f"{server.base_url}: {_reason(error)}") from None
    if response.status != 200:
        raise ProtocolError(f"{server.base_url}: {response.status}: {_explanation(response)}")
    try:
        facts = response.json()
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise HandshakeError(f"{server.base_url}: this is not an autorep server")
    return facts


def authority(ca: str | Path | None) -> ssl.SSLContext:
    """What to trust: the given authority, or the system's."""
    if ca is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca}: cannot read the certificate authority ({error})") from None


def https_only(url: str, where: str) -> str:
    """A server's address, which must be encrypted: a share in clear beside the other one is the image."""
    if not url.lower().startswith("https://"):
        hint = "https://" + url.partition("://")[2] if "://" in url else f"https://{url}"
        raise ConfigError(
            f"{where}: {url!r} is not an https:// address, and shares are never sent in clear; write {hint}"
        )
    return url


def _to(pair: str | None) -> dict[str, str]:
    """Tells a balancer which pair of servers this request belongs to."""
    return {} if pair is None else {"Autorep-Pair": pair}


def _explanation(response: Response) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return "no explanation given"


def _about_token(server: Connections) -> str:
    if server.has_token:
        return "this server does not know the token that was sent; ask its operator for a valid one"
    return (
        "this server answers only clients with a token; give yours: --token-file FILE, in Python token=TEXT (its "
        "operator makes one with `autorep keys client`)"
    )


def _reason(error: HttpError) -> str:
    text = str(error)
    if isinstance(_cause(error), ssl.SSLCertVerificationError):
        return (
            f"certificate refused ({text}); give the authority that signed the servers' certificates: --ca FILE, in "
            "Python ca=FILE (ca.pem of `autorep keys`, or what `serve --local` prints)"
        )
    return f"{text}; check that the server runs and that the address is right"


def _cause(error: BaseException) -> BaseException:
    """What lies at the bottom of an error."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error
