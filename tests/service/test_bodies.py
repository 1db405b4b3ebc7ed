"""Bodies on their way: however many come at once, they take a bounded part of the memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from autorep.program.ir import Program
from autorep.service import api
from autorep.service.metrics import Metrics
from autorep.service.queries import QueryFailure
from autorep.service.shares import CONTENT_TYPE


class Busy:
    """A session that turns away what reached it."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def submit(self, *_: Any) -> list[asyncio.Future[Any]]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_exception(QueryFailure(503, "busy", 1))
        return [future]


def test_what_arrives_at_once_is_bounded(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    image = 8 * 64
    monkeypatch.setattr(api, "_BODY_BYTES", 33 * image)
    served = api.Api(0, {"p": Busy(program)}, Metrics(), api.ApiSettings())  # type: ignore[dict-item]
    gate, waiting = asyncio.Event(), SimpleNamespace(count=0)

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(31 * image)
        waiting.count += 1
        await gate.wait()
        yield bytes(image)

    async def scene() -> list[str]:
        transport = httpx.ASGITransport(served.app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:

            def post(content: Any) -> Any:
                return web.post(
                    f"/v1/programs/p/queries/{32 * 'a'}", content=content, headers={"Content-Type": CONTENT_TYPE}
                )

            first = asyncio.create_task(post(slow()))
            while not waiting.count:
                await asyncio.sleep(0.01)
            second = await post(bytes(4 * image))
            gate.set()
            answers = await first, second, await post(bytes(4 * image))
            return [answer.json()["message"] for answer in answers]

    assert asyncio.run(scene()) == ["busy", "too much arrives at once; ask again in a moment", "busy"]
    assert served._arriving == 0
