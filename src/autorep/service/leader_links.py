"""Party 0's end of the links between the servers; each is served by one thread, which only carries.

Links, all opened by party 1 under one random `epoch`:

    setup      opens the weights under the dealer's blinding, when either side has not done so
    commands   party 0 → 1: prepare a kit, drop a query
    notes      party 1 → 0: kits stored, prepared or missing; halves arrived or gone
    lane i     one query after another: a message that names queries and kit, then the protocol itself

When commands or notes break, the epoch ends: everything that waits fails with 503, what was prepared is thrown away,
and party 1 dials again.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

from autorep.mpc.transport import Transport, handshake
from autorep.service.leader import Leader
from autorep.service.logs import event
from autorep.service.messages import ALIVE, receive_message, send_message
from autorep.service.outbox import Outbox
from autorep.service.processor_time import LANE
from autorep.service.queries import QueryFailure
from autorep.service.session import Lane, Session


class LeaderSession(Session):
    """One program at party 0."""

    index = 0
    machine: Leader

    def __init__(self, *arguments: Any, **options: Any) -> None:
        *_, settings, _ = arguments
        super().__init__(Leader(settings), *arguments, **options)
        self._links: set[Transport] = set()
        self._outbox = Outbox()

    # ------------------------------------------------------------------ holding `turn`, or on the loop

    def tell(self, message: dict[str, Any]) -> None:
        self._outbox.put(message)

    def cut_links(self, epoch: str) -> None:
        links, self._links = self._links, set()
        self._outbox.close()
        self._outbox = Outbox()
        for link in links:
            link.interrupt()

    def supply_idle(self) -> None:
        """Party 1 has its store compared."""

    def supply_flows(self, flows: bool) -> None:
        self.happen(self.machine.supply, flows)

    # ------------------------------------------------------------------ each in its own thread

    def _join(self, transport: Transport, epoch: str) -> Outbox | None:
        """A link of this epoch is there; None when the epoch is over."""
        with self.turn:
            if epoch != self.machine.epoch:
                return None
            self._links.add(transport)
            return self._outbox

    def serve_link(self, transport: Transport, greeting: dict[str, Any]) -> None:
        """Serve one authenticated connection of party 1 until it ends."""
        if greeting.get("kind") == "probe":
            problems = "; ".join(self.machine.problems.copy().values())
            send_message(transport, {"state": problems or "connected to party 1"})
            return
        if self.blinding is None:
            transport.abort("party 0 has no blinding yet; it waits for its dealer")
            return
        if self.stopping.is_set():
            transport.abort("party 0 is stopping")
            return
        handshake(transport, self.hello())
        kind, epoch = greeting.get("kind"), str(greeting.get("epoch"))
        if kind == "setup":
            self._set_up(transport, epoch)
            return
        outbox = self._join(transport, epoch)
        if outbox is None:
            transport.abort("this connection belongs to an epoch that ended; dial again")
            return
        try:
            if kind == "commands":
                self._send_commands(transport, epoch, outbox)
            elif kind == "notes":
                self._read_notes(transport, epoch)
            elif kind == "lane":
                self._serve_lane(transport, epoch)
        finally:
            with self.turn:
                self._links.discard(transport)
            if kind in ("commands", "notes"):
                self.happen(self.machine.ended, epoch, f"the {kind} link to party 1 broke")

    def _set_up(self, transport: Transport, epoch: str) -> None:
        self.happen(self.machine.ended, None, "party 1 dialled anew")
        blinding, party, needed = self.blinding, None, self.party is None
        assert blinding is not None
        send_message(transport, {"needs_setup": needed})
        if receive_message(transport).get("needs_setup") or needed:
            party = self.open_weights(transport, blinding)
        self.begin_epoch(epoch, blinding, party)
        send_message(transport, {"done": True})

    def _send_commands(self, transport: Transport, epoch: str, outbox: Outbox) -> None:
        event("peer connected", program=self.hash)
        self.happen(self.machine.connected, epoch)
        outbox.serve(transport, self.settings.timeout / 4)

    def _read_notes(self, transport: Transport, epoch: str) -> None:
        while not self.stopping.is_set():
            note = receive_message(transport)
            self.happen(self.machine.noted, time.monotonic(), epoch, note)

    def _serve_lane(self, transport: Transport, epoch: str) -> None:
        lane = Lane(epoch)
        threading.current_thread().name = LANE
        self.metrics.lanes.inc()
        self.happen(self.machine.lane_up, epoch, lane)
        try:
            while not self.stopping.is_set():
                try:
                    job = lane.jobs.get(timeout=self.settings.timeout / 4)
                except queue.Empty:
                    send_message(transport, ALIVE)
                    continue
                if isinstance(job, str):
                    transport.abort(job)
                    break
                send_message(transport, {"queries": job.keys, "kit": job.kit_id})
                try:
                    outcome: Any = job.run(transport)
                except QueryFailure as failure:
                    outcome = failure
                self.happen(self.machine.finished, time.monotonic(), lane, outcome)
                if isinstance(outcome, QueryFailure):
                    break
        finally:
            self.metrics.lanes.dec()
            self.happen(self.machine.lane_down, lane)
