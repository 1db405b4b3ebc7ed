"""The clients: asynchronous, several images in one query, failures that cost only their own image."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from autorep.errors import ProtocolError
from autorep.modes import Program
from autorep.service import async_client
from autorep.service.answers import Part
from autorep.service.async_client import AsyncClient
from autorep.service.client import Client
from autorep.service.http1 import Connections
from autorep.service.local import LocalDeployment
from autorep.service.shares import CONTENT_TYPE, new_query_id, split
from autorep.service.web import Refused, authority, post


def test_async_client_answers_in_the_callers_loop(
    deployment: LocalDeployment, program: Program, images: np.ndarray
) -> None:
    async def ask() -> np.ndarray:
        async with AsyncClient(deployment.urls, ca=deployment.ca) as client:
            first, second = await asyncio.gather(client.predict(images[:5]), client.predict(images[5:8]))
        return np.stack([answer.logits for answer in first + second])

    assert np.abs(asyncio.run(ask()) - program.run(images[:8], "fixed")).max() < 1e-3


def test_several_images_travel_in_one_query(
    deployment: LocalDeployment, client: Client, program: Program, images: np.ndarray
) -> None:
    shares = split(images[:3], program.input.frac)
    path = f"/v1/programs/{client.description.program}/queries/{new_query_id()}"

    async def ask() -> list[list[Part | Refused]]:
        trusted = authority(deployment.ca)
        servers = [Connections(url, trusted, {}, 20.0) for url in deployment.urls]
        parts = await asyncio.gather(*(post(server, path, body, 3) for server, body in zip(servers, shares)))
        again = await servers[0].request("POST", path, {"Content-Type": CONTENT_TYPE}, shares[0])
        assert again.status == 409
        for server in servers:
            await server.close()
        return parts

    first, second = asyncio.run(ask())
    assert all(isinstance(part, Part) and part.rounds > 0 for part in (*first, *second))
    total = sum(np.frombuffer(b"".join(part.share for part in parts), "<u8") for parts in (first, second))  # type: ignore[union-attr, misc]
    bits, frac = program.output.bits, program.output.frac
    found = ((total << np.uint64(64 - bits)).view(np.int64) >> (64 - bits)) / 2.0**frac
    assert np.abs(found.reshape(3, -1) - program.run(images[:3], "fixed")).max() < 1e-3


def test_failed_image_does_not_lose_the_others(
    client: Client, program: Program, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spoil(server: Connections, path: str, body: bytes, count: int, pair: Any) -> list[Any]:
        parts = await post(server, path, body, count, pair)
        return [Refused(422, "spoilt") if number == 1 else part for number, part in enumerate(parts)]

    monkeypatch.setattr(async_client, "post", spoil)
    outcomes = client.predict(images[:4], errors="keep")
    assert sum(isinstance(outcome, ProtocolError) for outcome in outcomes) < 4
    for image, outcome in zip(images, outcomes):
        if not isinstance(outcome, ProtocolError):
            assert np.abs(outcome.logits - program.run(image[None], "fixed")[0]).max() < 1e-3
    monkeypatch.setattr(async_client, "post", post)


def test_image_that_failed_for_a_moment_is_asked_again(
    deployment: LocalDeployment, program: Program, images: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    async def stumble(server: Connections, path: str, body: bytes, count: int, pair: Any) -> list[Any]:
        parts = await post(server, path, body, count, pair)
        asked.append(count)
        return [Refused(503, "busy", 0.0), *parts[1:]] if len(asked) <= 2 else parts

    monkeypatch.setattr(async_client, "post", stumble)
    with deployment.client(concurrency=1) as client:
        answers = client.predict(images[:4])
    assert asked == [4, 4, 1, 1], "the three that were answered are not asked again"
    assert [answer.attempts for answer in answers] == [2, 1, 1, 1]
    found = np.stack([answer.logits for answer in answers])
    assert np.abs(found - program.run(images[:4], "fixed")).max() < 1e-3


def test_failures_leave_no_forgotten_exceptions(deployment: LocalDeployment, images: np.ndarray) -> None:
    complaints: list[Any] = []

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        async with AsyncClient(deployment.urls, ca=deployment.ca, patience=0) as client:
            await client.description()
            await client._servers[1].close()
            client._servers[1] = Connections("https://127.0.0.1:9", authority(None), {}, 20.0)
            with pytest.raises(ProtocolError, match="check that the server runs"):
                await client.predict(images[:8])
        gc.collect()

    asyncio.run(ask())
    gc.collect()
    assert not complaints


def test_refused_clients_come_back_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def nap(seconds: float) -> None:
        pauses.append(seconds)

    async def refuse(self: AsyncClient, images: np.ndarray, description: Any) -> list[Refused]:
        return [Refused(503, "full", 4.0)] if len(pauses) < 30 else [Refused(400, "enough")]

    async def stay(self: AsyncClient) -> None:
        """No other pair."""

    monkeypatch.setattr(async_client.asyncio, "sleep", nap)
    monkeypatch.setattr(AsyncClient, "_choose_pair", stay)
    monkeypatch.setattr(AsyncClient, "_ask", refuse)
    client = AsyncClient(["https://a", "https://b"])
    (outcome,) = asyncio.run(client._group_of(np.zeros((1, 1)), None, 1))  # type: ignore[arg-type]
    assert isinstance(outcome, ProtocolError)
    assert len(set(pauses)) > 20
    assert all(4.0 <= pause <= 6.0 for pause in pauses), "as long as the server said, and up to half as long again"


def test_closing_a_client_ends_what_it_waits_for(deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    async def never(*_: Any) -> list[Any]:
        asked.set()
        await asyncio.sleep(600)
        return []

    monkeypatch.setattr(async_client, "post", never)
    client = deployment.client()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.predict, np.zeros((2, 1, 8, 8)))
        assert asked.wait(60)
        client.close()
        with pytest.raises(ProtocolError, match="the client was closed before the answer came"):
            waiting.result(60)
