"""The client: splits images into shares, asks both servers, adds the answers. numpy and httpx only.

>>> client = Client(["https://server0:8440", "https://server1:8441"], token="…", ca="ca.pem")   # doctest: +SKIP
>>> client.predict(images)[0].label                                                            # doctest: +SKIP

A query that failed is asked again under a new id and with new masks: a mask used twice would reveal the difference of
two images.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import numpy as np

from autorep.errors import ConfigError, HandshakeError, ProtocolError
from autorep.preprocessing import Preprocessing, checked_numbers
from autorep.service.shares import CONTENT_TYPE, join, new_query_id, split
from autorep.service.tokens import server_token

T = TypeVar("T")
_RETRIED = (424, 429, 502, 503)


@dataclass(frozen=True)
class Prediction:
    """The answer for one image.

    Attributes:
        label: name of the most probable class; probability: its softmax.
        top: the most probable classes and their probabilities, best first.
        in_range: False when the logits are far beyond all that calibration showed: then this image has outgrown the
            network's polynomials, and the answer is noise.
        logits: the network's output.
        seconds: from the first byte sent to the answer.
        online_seconds, sent_bytes, rounds: of the protocol between the servers (bytes: the larger of both).
        offline_bytes: correlated randomness both servers consumed.
        attempts: how often the query was asked.
    """

    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    in_range: bool
    logits: np.ndarray = field(repr=False)
    seconds: float
    online_seconds: float
    sent_bytes: int
    rounds: int
    offline_bytes: int
    attempts: int


@dataclass(frozen=True)
class Description:
    """What both servers say about the program they run."""

    program: str
    input_shape: tuple[int, ...]
    input_frac: int
    output_bits: int
    output_frac: int
    info: dict[str, Any] = field(repr=False)

    @property
    def output_limit(self) -> float:
        """The largest |logit| the program's widths allow."""
        return float(self.info.get("output_limit") or np.inf)

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How a picture becomes the input; None where the program does not take pictures."""
        return Preprocessing.of(self.info, self.input_shape)

    def pixels(self, images: Any) -> np.ndarray:
        """Images of any accepted form as a batch (N, *input shape) of numbers the program takes."""
        if self.preprocessing is not None:
            return self.preprocessing.batch(images)
        return checked_numbers(np.asarray(images), self.input_shape)

    def class_name(self, index: int) -> str:
        """The model owner's name of a class, or its number."""
        names = self.info.get("class_names") or ()
        return str(names[index]) if index < len(names) else str(index)


class Client:
    """Asks a pair of servers; safe to use from several threads, and as a context manager.

    Args:
        servers: URLs of server 0 and server 1.
        token: this client's token, when the servers want one; each server is sent another derivate of it.
        ca: certificate authority of the servers (PEM file), when it is a private one.
        program: hash of the program to use, when the servers run several.
        timeout: seconds to wait for one answer.
        concurrency: queries in flight at the same time.
        patience: seconds during which a refused query is asked again before giving up.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        token: str | None = None,
        ca: str | Path | None = None,
        program: str | None = None,
        timeout: float = 60.0,
        concurrency: int = 4,
        patience: float = 60.0,
    ) -> None:
        if len(servers) != 2:
            raise ConfigError(f"client: {len(servers)} servers given; exactly two are needed, server 0 first")
        self._patience, self._concurrency, self._wanted = patience, concurrency, program
        verify = authority(ca)
        limits = httpx.Limits(max_connections=2 * concurrency, max_keepalive_connections=concurrency)
        self._servers = [
            httpx.AsyncClient(
                base_url=https_only(url, "client"),
                headers={} if token is None else {"Authorization": f"Bearer {server_token(token, index)}"},
                verify=verify,
                timeout=timeout,
                limits=limits,
            )
            for index, url in enumerate(servers)
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="autorep-client", daemon=True)
        self._thread.start()
        self._description: Description | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        if not self._loop.is_running():
            return
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def description(self) -> Description:
        """The program, as both servers describe it; raises HandshakeError where they differ."""
        if self._description is None:
            self._description = self._wait(self._describe())
        return self._description

    def predict(self, images: Any, *, top: int = 3, progress: bool = False) -> list[Prediction]:
        """Classify pictures: paths or Pillow images, or an array (N, *input shape) of uint8 levels or floats in [0, 1].

        Pictures are prepared as the model's owner says (`Description.preprocessing`).
        """
        description = self.description
        return self._wait(self._predict(description.pixels(images), description, top, progress))

    def logits(self, images: Any, *, progress: bool = False) -> np.ndarray:
        """The network's output for a batch (N, classes)."""
        return np.stack([answer.logits for answer in self.predict(images, progress=progress)])

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _close(self) -> None:
        for server in self._servers:
            await server.aclose()

    async def _describe(self) -> Description:
        found = []
        for index, server in enumerate(self._servers):
            answer = await _get(server, "/v1/deployment")
            if answer.get("party") != index:
                raise HandshakeError(
                    f"{server.base_url} is server {answer.get('party')}, not {index}; swap the two URLs"
                )
            programs = (await _get(server, "/v1/programs"))["programs"]
            found.append({entry["program"]: entry for entry in programs})
        both = sorted(found[0].keys() & found[1].keys())
        choices = [name for name in both if self._wanted is None or name.startswith(self._wanted)]
        if len(choices) != 1:
            listed = ", ".join(both) or "none"
            wanted = "one" if self._wanted is None else repr(self._wanted)
            raise HandshakeError(f"cannot choose a program ({wanted} wanted); both servers run: {listed}")
        entry = found[0][choices[0]]
        if entry != found[1][choices[0]]:
            raise HandshakeError("the two servers describe the program differently; one of them is not to be trusted")
        return Description(
            program=entry["program"],
            input_shape=tuple(entry["input"]["shape"]),
            input_frac=entry["input"]["frac"],
            output_bits=entry["output"]["bits"],
            output_frac=entry["output"]["frac"],
            info=entry["info"],
        )

    async def _predict(
        self, images: np.ndarray, description: Description, top: int, progress: bool
    ) -> list[Prediction]:
        from tqdm import tqdm

        gate = asyncio.Semaphore(self._concurrency)
        with tqdm(total=len(images), desc="private inference", unit="image", disable=not progress) as bar:

            async def one(image: np.ndarray) -> Prediction:
                async with gate:
                    answer = await self._one(image, description, top)
                bar.update()
                return answer

            tasks = [asyncio.create_task(one(image)) for image in images]
            try:
                return list(await asyncio.gather(*tasks))
            finally:  # after a failure nobody waits for the others
                for task in tasks:
                    task.cancel()

    async def _one(self, image: np.ndarray, description: Description, top: int) -> Prediction:
        """Ask until answered, each time with a new id and new masks."""
        started = time.perf_counter()
        wait, attempt = 0.1, 0
        while True:
            attempt += 1
            try:
                first, second = await self._ask(image, description)
            except _Refused as refusal:
                if refusal.status not in _RETRIED or time.perf_counter() - started > self._patience:
                    raise ProtocolError(f"{refusal} (asked {attempt} times)") from None
                await asyncio.sleep(max(wait, refusal.retry_after))
                wait = min(2 * wait, 2.0)
                continue
            logits = join(first.content, second.content, description.output_bits, description.output_frac)
            return _prediction(logits, (first, second), description, top, time.perf_counter() - started, attempt)

    async def _ask(self, image: np.ndarray, description: Description) -> list[httpx.Response]:
        """One query: a fresh id, fresh masks, both halves at once; when one is refused the other is withdrawn.

        Withdrawing is a request of its own: a cancelled request would cost its connection.
        """
        path = f"/v1/programs/{description.program}/queries/{new_query_id()}"
        bodies = split(image, description.input_frac, description.info.get("input_range"))
        tasks = [asyncio.create_task(_post(server, path, body)) for server, body in zip(self._servers, bodies)]
        finished, unfinished = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        refusals = [error for task in finished if (error := task.exception()) is not None]
        for task in unfinished:
            await _withdraw(self._servers[tasks.index(task)], path)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for refusal in (*refusals, *answers):
            if isinstance(refusal, BaseException):
                raise refusal
        return [answer for answer in answers if isinstance(answer, httpx.Response)]


class _Refused(Exception):
    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


async def _post(server: httpx.AsyncClient, path: str, body: bytes) -> httpx.Response:
    try:
        response = await server.post(path, content=body, headers={"Content-Type": CONTENT_TYPE})
    except httpx.HTTPError as error:
        raise _Refused(503, f"{server.base_url}: {_reason(error)}") from None
    if response.status_code == 200:
        return response
    try:
        message = str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        message = "no explanation given"
    retry_after = response.headers.get("retry-after", "0")
    seconds = float(retry_after) if retry_after.isdigit() else 0.0
    raise _Refused(response.status_code, f"{server.base_url}: {response.status_code}: {message}", seconds)


async def _withdraw(server: httpx.AsyncClient, path: str) -> None:
    with contextlib.suppress(httpx.HTTPError):  # then the half expires by itself
        await server.delete(path)


async def _get(server: httpx.AsyncClient, path: str) -> dict[str, Any]:
    try:
        response = await server.get(path)
        response.raise_for_status()
        return response.json()
    except httpx.HTTPError as error:
        raise ProtocolError(f"{server.base_url}: {_reason(error)}") from None
    except ValueError:
        raise HandshakeError(f"{server.base_url}: this is not an autorep server") from None


def _reason(error: httpx.HTTPError) -> str:
    text = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"certificate refused ({text}); give the servers' authority with ca="
    return f"{text}; check that the server runs and that the address is right"


def https_only(url: str, where: str) -> str:
    """A server's address, which must be encrypted: a share in clear beside the other one is the image."""
    if not url.lower().startswith("https://"):
        raise ConfigError(f"{where}: {url!r} is not an https:// address; shares are never sent in clear")
    return url


def authority(ca: str | Path | None) -> ssl.SSLContext:
    """What to trust: the given authority, or the system's."""
    if ca is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca}: cannot read the certificate authority ({error})") from None


def _prediction(
    logits: np.ndarray,
    responses: tuple[httpx.Response, httpx.Response],
    description: Description,
    top: int,
    seconds: float,
    attempts: int,
) -> Prediction:
    exponentials = np.exp(logits - logits.max())
    probabilities = exponentials / exponentials.sum()
    order = np.argsort(-probabilities)[: max(1, top)]
    best = tuple((description.class_name(int(i)), float(probabilities[i])) for i in order)

    def header(name: str) -> list[float]:
        return [float(response.headers.get(f"autorep-{name}", "0")) for response in responses]

    return Prediction(
        label=best[0][0],
        probability=best[0][1],
        top=best,
        in_range=bool(np.abs(logits).max() <= description.output_limit),
        logits=logits,
        seconds=seconds,
        online_seconds=max(header("seconds")),
        sent_bytes=int(max(header("sent-bytes"))),
        rounds=int(max(header("rounds"))),
        offline_bytes=int(sum(header("offline-bytes"))),
        attempts=attempts,
    )
