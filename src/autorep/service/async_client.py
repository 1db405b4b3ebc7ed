"""The client's work, as coroutines: splits images into shares, asks both servers, adds the answers.

>>> async with AsyncClient([url0, url1], token="…", ca="ca.pem") as client:                      # doctest: +SKIP
...     (answer,) = await client.predict(images)

A query that failed is asked again under a new id and with new masks: a mask used twice would reveal the difference of
two images.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from autorep.errors import ConfigError, HandshakeError, ProtocolError
from autorep.service.answers import Description, Part, Prediction, prediction
from autorep.service.probes import Probes
from autorep.service.shares import new_query_id, split
from autorep.service.tokens import server_token
from autorep.service.web import Refused, authority, connections, get, post, withdraw
from autorep.settings import require

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 2.0
_PAIRS_TRIED = 4
Outcome = Prediction | ProtocolError


class AsyncClient:
    """Asks a pair of servers; for one event loop, and an async context manager.

    Args:
        servers: URLs of server 0 and server 1.
        token: this client's token, when the servers want one; each server is sent another derivate of it.
        ca: certificate authority of the servers (PEM file), when it is a private one.
        program: name, part of the name, or beginning of the hash of the program to use, when the servers run several.
        timeout: seconds to wait for one answer.
        concurrency: queries in flight at the same time.
        images_per_query: images sent under one query id.
        patience: seconds during which a refused query is asked again before giving up.
        probes: images with known answers, to notice a server that cheats.
        verify: share of the queries that are probes, at least; with probes, every call has one or more.
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
        images_per_query: int = 4,
        patience: float = 60.0,
        probes: Probes | None = None,
        verify: float = 0.1,
    ) -> None:
        if len(servers) != 2:
            raise ConfigError(f"client: {len(servers)} servers given; exactly two are needed, server 0 first")
        require(concurrency >= 1, "concurrency", concurrency, "at least 1 query at a time")
        require(images_per_query >= 1, "images_per_query", images_per_query, "at least 1")
        require(timeout > 0, "timeout", timeout, "seconds above 0")
        self._patience, self._wanted = patience, program
        self._concurrency, self._group = concurrency, images_per_query
        trusted = authority(ca)
        tokens = [None if token is None else server_token(token, index) for index in (0, 1)]
        self._servers = [connections(url, own, trusted, timeout) for url, own in zip(servers, tokens, strict=True)]
        self._probes, self._verify = probes, verify
        self.verified = 0  # probes answered rightly so far
        self._description: Description | None = None
        self._pair: str | None = None

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        for server in self._servers:
            await server.close()

    async def description(self) -> Description:
        """The program, as both servers describe it; raises HandshakeError where they differ."""
        if self._description is None:
            self._description = await self._describe()
        return self._description

    @overload
    async def predict(
        self, images: Any, *, top: int = 3, progress: bool = False, errors: Literal["raise"] = "raise"
    ) -> list[Prediction]: ...

    @overload
    async def predict(
        self, images: Any, *, top: int = 3, progress: bool = False, errors: Literal["keep"]
    ) -> list[Outcome]: ...

    async def predict(
        self, images: Any, *, top: int = 3, progress: bool = False, errors: Literal["raise", "keep"] = "raise"
    ) -> list[Any]:
        """Classify pictures: paths or Pillow images, or an array (N, *input shape) of uint8 levels or floats in [0, 1].

        Pictures are prepared as the model's owner says (`Description.preprocessing`). An image that fails does not cost
        the others theirs: with errors="keep" its error stands in its place, else the first error is raised at the end.
        With probes, one wrong answer among them raises CheatingError, and no answer is given.
        """
        require(top >= 1, "top", top, "at least 1 class for each image")
        description = await self.description()
        numbers = description.pixels(images)
        if self._probes is None:
            outcomes = await self._predict(numbers, description, top, progress)
        else:
            outcomes = await self._predict_verified(self._probes, numbers, description, top, progress)
        for outcome in outcomes:
            if isinstance(outcome, ProtocolError) and errors == "raise":
                raise outcome
        return outcomes

    async def _predict_verified(
        self, probes: Probes, images: np.ndarray, description: Description, top: int, progress: bool
    ) -> list[Outcome]:
        if probes.program != description.program:
            raise ConfigError(
                f"the probes belong to program {probes.program[:16]}…, these servers run {description.program[:16]}…; "
                "ask the model's owner for the right ones"
            )
        mixed = probes.mix(images, self._verify)
        outcomes, right = mixed.own(await self._predict(mixed.images, description, top, progress))
        self.verified += right
        return outcomes

    async def _describe(self) -> Description:
        found = []
        await self._choose_pair()
        for index, server in enumerate(self._servers):
            answer = await get(server, "/v1/deployment", self._pair)
            if answer.get("party") != index:
                raise HandshakeError(
                    f"{server.base_url} is server {answer.get('party')}, not {index}; swap the two URLs"
                )
            programs = (await get(server, "/v1/programs", self._pair))["programs"]
            found.append({entry["program"]: entry for entry in programs})
        both = {key: str(found[0][key]["info"].get("name")) for key in sorted(found[0].keys() & found[1].keys())}
        chosen = self._chosen(both)
        entry = found[0][chosen]
        if entry != found[1][chosen]:
            raise HandshakeError("the two servers describe the program differently; one of them is not to be trusted")
        return Description(
            program=entry["program"],
            input_shape=tuple(entry["input"]["shape"]),
            input_frac=entry["input"]["frac"],
            output_bits=entry["output"]["bits"],
            output_frac=entry["output"]["frac"],
            info=entry["info"],
        )

    def _chosen(self, names: Mapping[str, str]) -> str:
        """The wanted one of the programs (hash -> name) that both servers run."""
        wanted = self._wanted
        choices = [key for key, name in names.items() if wanted is None or key.startswith(wanted) or name == wanted]
        if not choices and wanted is not None:
            choices = [key for key, name in names.items() if wanted.lower() in name.lower()]
        if len(choices) == 1:
            return choices[0]
        if not names:
            raise HandshakeError("the two servers have no program in common; give both the bundles of the same models")
        listed = ", ".join(f"{name!r} ({key[:8]}…)" for key, name in names.items())
        what = "they run" if wanted is None else f"{wanted!r} names {len(choices) or 'none'} of them; they run"
        raise HandshakeError(
            f"which program? {what} {listed}: choose with --program, in Python program=, by a name, a part of one, or "
            "the beginning of a hash"
        )

    async def _choose_pair(self) -> None:
        """Stay with one pair of servers: behind balancers both halves must reach the same one.

        A request without a pair's name goes to any; one that is ready is taken.
        """
        for _ in range(_PAIRS_TRIED):
            answer = await get(self._servers[0], "/v1/deployment")
            self._pair = answer.get("pair")
            if answer.get("ready", True):
                return

    async def _predict(self, images: np.ndarray, description: Description, top: int, progress: bool) -> list[Outcome]:
        size = max(1, min(self._group, -(-len(images) // self._concurrency)))
        if len(images) <= size and not progress:
            return await self._group_of(images, description, top)
        from tqdm import tqdm

        gate = asyncio.Semaphore(self._concurrency)
        with tqdm(total=len(images), desc="private inference", unit="image", disable=not progress) as bar:

            async def group(start: int) -> list[Outcome]:
                async with gate:
                    outcomes = await self._group_of(images[start : start + size], description, top)
                bar.update(len(outcomes))
                return outcomes

            groups = await asyncio.gather(*(group(start) for start in range(0, len(images), size)))
        return [outcome for outcomes in groups for outcome in outcomes]

    async def _group_of(self, images: np.ndarray, description: Description, top: int) -> list[Outcome]:
        """Ask until every image is answered or hopeless, each time with a new id and new masks."""
        started = time.perf_counter()
        outcomes: dict[int, Outcome] = {}
        wait, attempt = _FIRST_WAIT, 0
        while missing := [number for number in range(len(images)) if number not in outcomes]:
            attempt += 1
            pause = 0.0
            for number, parts in zip(missing, await self._ask(images[missing], description)):
                seconds = time.perf_counter() - started
                if isinstance(parts, list):
                    outcomes[number] = prediction(parts, description, top, seconds, attempt)
                elif not parts.passing or seconds > self._patience:
                    outcomes[number] = ProtocolError(f"{parts} (asked {attempt} times)")
                else:
                    pause = max(pause, parts.retry_after, wait)
            if pause:
                await asyncio.sleep(pause * random.uniform(1.0, 1.5))  # or all who were refused come back at once
                wait = min(2 * wait, _LONGEST_WAIT)
                with contextlib.suppress(ProtocolError):  # server 0 is away: the next attempt will say so
                    await self._choose_pair()
        return [outcomes[number] for number in range(len(images))]

    async def _ask(self, images: np.ndarray, description: Description) -> Sequence[list[Part] | Refused]:
        """One query: a fresh id, fresh masks, both halves at once; when one is refused the other is withdrawn.

        Withdrawing is a request of its own: a cancelled request would cost its connection.
        """
        path = f"/v1/programs/{description.program}/queries/{new_query_id()}"
        shares = split(images, description.input_frac, description.info.get("input_range"))
        count, pair = len(images), self._pair
        halves = list(zip(self._servers, shares))
        # Server 1 has to tell server 0 what arrived, so it is asked first.
        tasks = [asyncio.create_task(post(server, path, body, count, pair)) for server, body in reversed(halves)]
        try:
            finished, unfinished = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in unfinished:
                await withdraw(self._servers[1 - tasks.index(task)], path, pair)
            if unfinished:
                await asyncio.wait(unfinished)
        finally:  # cancelled: nobody waits for these any more
            for task in tasks:
                task.cancel()
        for task in (*finished, *unfinished):  # the first refusal is the cause
            if isinstance(refusal := task.exception(), Refused):
                return count * [refusal]
            if refusal is not None:
                raise refusal
        second, first = (task.result() for task in tasks)
        return [_joined(one, other) for one, other in zip(first, second)]


def _joined(one: Part | Refused, other: Part | Refused) -> list[Part] | Refused:
    if isinstance(one, Refused):
        return one
    return other if isinstance(other, Refused) else [one, other]
