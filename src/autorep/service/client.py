"""The client for ordinary code: the coroutines of `AsyncClient`, run by a thread of its own. numpy only.

>>> client = Client(["https://server0:8440", "https://server1:8441"], token="…", ca="ca.pem")   # doctest: +SKIP
>>> client.predict(images)[0].label                                                            # doctest: +SKIP
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, TypeVar, overload

import numpy as np

from autorep.errors import ConfigError, ProtocolError
from autorep.service.answers import Description, Prediction
from autorep.service.async_client import AsyncClient, Outcome

T = TypeVar("T")


class Client:
    """Asks a pair of servers; safe to use from several threads, and as a context manager.

    The options are those of `AsyncClient`.
    """

    def __init__(self, servers: Sequence[str], **options: Any) -> None:
        self._inner = AsyncClient(servers, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="autorep-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; whoever still waits for an answer gets an error."""
        if not self._loop.is_running():
            return
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def description(self) -> Description:
        """The program, as both servers describe it; raises HandshakeError where they differ."""
        return self._wait(self._inner.description())

    @property
    def verified(self) -> int:
        """Probes answered rightly so far."""
        return self._inner.verified

    @overload
    def predict(
        self, images: Any, *, top: int = 3, progress: bool = False, errors: Literal["raise"] = "raise"
    ) -> list[Prediction]: ...

    @overload
    def predict(
        self, images: Any, *, top: int = 3, progress: bool = False, errors: Literal["keep"]
    ) -> list[Outcome]: ...

    def predict(self, images: Any, *, top: int = 3, progress: bool = False, errors: Any = "raise") -> list[Any]:
        """See `AsyncClient.predict`."""
        return self._wait(self._inner.predict(images, top=top, progress=progress, errors=errors))

    def logits(self, images: Any, *, progress: bool = False) -> np.ndarray:
        """The network's output for a batch (N, classes)."""
        found = [answer.logits for answer in self.predict(images, progress=progress)]
        given = [logits for logits in found if logits is not None]
        if len(given) < len(found):
            raise ConfigError("this program's owner lets servers give classes only, no logits; use predict")
        return np.stack(given)

    async def _end(self) -> None:
        unfinished = asyncio.all_tasks() - {asyncio.current_task()}
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
        await self._inner.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except concurrent.futures.CancelledError:
            raise ProtocolError("the client was closed before the answer came") from None
