"""Party 1's end of the links between the servers: it dials, and dials again; threads only carry.

See `leader_links` for what the links are.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from autorep.errors import MaterialError, ProtocolError
from autorep.mpc.transport import Transport, handshake
from autorep.service.follower import Follower
from autorep.service.logs import event, trouble
from autorep.service.messages import receive_message, send_message
from autorep.service.outbox import Outbox
from autorep.service.processor_time import LANE
from autorep.service.queries import QueryFailure
from autorep.service.session import Lane, Session
from autorep.service.workers import Worker


class _Epoch:
    """All links of one dial-up; when one of commands or notes breaks, all are cut."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.notes = Outbox()
        self.over = threading.Event()
        self.workers: list[Worker] = []
        self._links: set[Transport] = set()
        self._lock = threading.Lock()

    def add(self, link: Transport) -> None:
        with self._lock:
            self._links.add(link)
        if self.over.is_set():
            link.interrupt()

    def remove(self, link: Transport) -> None:
        with self._lock:
            self._links.discard(link)
        link.close()

    def end(self) -> None:
        self.over.set()
        self.notes.close()
        with self._lock:
            for link in self._links:
                link.interrupt()


class FollowerSession(Session):
    """One program at party 1.

    `dial` opens one authenticated connection to party 0 (in the caller's thread).
    """

    index = 1
    machine: Follower

    def __init__(self, *arguments: Any, dial: Callable[[], Transport], **options: Any) -> None:
        *_, settings, _ = arguments
        super().__init__(Follower(settings), *arguments, **options)
        self._dial = dial
        self._epoch = _Epoch()
        self.workers.append(
            Worker("autorep-dial", self._live, self.stopping, self.metrics.crashed, self._lost, program=self.hash)
        )

    def stop(self) -> None:
        super().stop()
        self._epoch.end()

    def ills(self) -> dict[str, str]:
        lanes = {worker.name: problem for worker in self._epoch.workers if (problem := worker.problem) is not None}
        return super().ills() | lanes

    # ------------------------------------------------------------------ holding `turn`, or on the loop

    def tell(self, message: dict[str, Any]) -> None:
        self._epoch.notes.put(message)

    def cut_links(self, epoch: str) -> None:
        if epoch == self._epoch.name:
            self._epoch.end()

    def supply_idle(self) -> None:
        self.happen(self.machine.supply_idle)

    def supply_flows(self, flows: bool) -> None:
        """Party 0 decides which query may wait for a kit."""

    # ------------------------------------------------------------------ each in its own thread

    def _lost(self, error: Exception) -> None:
        self._epoch.end()
        self.happen(self.machine.ended, self._epoch.name, str(error) or type(error).__name__)

    def _live(self) -> None:
        """One epoch, from dialling to the loss of the link."""
        epoch = self._epoch = _Epoch()
        if self.blinding is None:
            raise MaterialError("party 1 has no blinding yet; it waits for its dealer")
        self._set_up(epoch)
        commands, notes = self._open(epoch, "commands"), self._open(epoch, "notes")
        sender = threading.Thread(target=self._send_notes, args=(epoch, notes), name="autorep-notes", daemon=True)
        crashed, count = self.metrics.crashed, self.settings.lanes
        epoch.workers = [
            Worker(f"{LANE}-{i}", partial(self._serve_lane, epoch, i), epoch.over, crashed, program=self.hash)
            for i in range(count)
        ]
        for thread in (sender, *epoch.workers):
            thread.start()
        event("peer connected", program=self.hash)
        self.happen(self.machine.connected, epoch.name)
        try:
            while not self.stopping.is_set():
                self.happen(self.machine.told, epoch.name, receive_message(commands))
        finally:
            epoch.end()
            for thread in (sender, *epoch.workers):
                thread.join(self.settings.timeout)

    def _set_up(self, epoch: _Epoch) -> None:
        blinding, party, needed = self.blinding, None, self.party is None
        assert blinding is not None
        link = self._open(epoch, "setup")
        send_message(link, {"needs_setup": needed})
        if receive_message(link).get("needs_setup") or needed:
            party = self.open_weights(link, blinding)
        receive_message(link)
        self.begin_epoch(epoch.name, blinding, party)
        epoch.remove(link)

    def _open(self, epoch: _Epoch, kind: str, **fields: Any) -> Transport:
        """Dial, say what for, and compare program, blinding and parameters."""
        transport = self._dial()
        epoch.add(transport)
        send_message(transport, {"kind": kind, "program": self.hash, "epoch": epoch.name, **fields})
        handshake(transport, self.hello())
        return transport

    def _send_notes(self, epoch: _Epoch, transport: Transport) -> None:
        try:
            epoch.notes.serve(transport, self.settings.timeout / 4)
        except ProtocolError as error:
            trouble("notes link", error, program=self.hash)
        finally:
            epoch.end()

    def _serve_lane(self, epoch: _Epoch, number: int) -> None:
        """One connection for queries, until it breaks."""
        transport = self._open(epoch, "lane", lane=number)
        self.metrics.lanes.inc()
        lane = Lane(epoch.name)
        try:
            while not epoch.over.is_set():
                message = receive_message(transport)
                if isinstance(queries := message.get("queries"), list):
                    keys = tuple(str(key) for key in queries)
                    self._run_asked(epoch, lane, transport, keys, str(message.get("kit")))
        except ProtocolError:
            if not epoch.over.is_set():
                raise
        finally:
            self.metrics.lanes.dec()
            epoch.remove(transport)

    def _run_asked(self, epoch: _Epoch, lane: Lane, transport: Transport, keys: tuple[str, ...], kit: str) -> None:
        self.happen(self.machine.asked, epoch.name, lane, keys, kit)
        job = lane.jobs.get(timeout=self.settings.timeout)
        if isinstance(job, str):
            transport.abort(job)
            raise ProtocolError(f"party 0 asked for query {', '.join(keys)} with kit {kit}, which are not both here")
        try:
            outcome: Any = job.run(transport)
        except QueryFailure as failure:
            outcome = failure
        self.happen(self.machine.finished, time.monotonic(), keys, outcome)
        if isinstance(outcome, QueryFailure):
            raise ProtocolError("the lane's query failed; it dials again")
