"""Party 1's side of a session: dials party 0, reports what arrives, and does what party 0 decides.

A half that was reported stays here until party 0 runs or drops it, so the two servers never disagree about it.
"""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from autorep.errors import AutorepError, MaterialError, ProtocolError
from autorep.mpc.party import PreparedQuery
from autorep.mpc.transport import Ledger, Transport, handshake
from autorep.service.logs import event, trouble
from autorep.service.messages import receive_message, send_message
from autorep.service.session import Answer, Query, QueryFailure, Session

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0


class _Epoch:
    """All links of one dial-up; when one of commands or notes breaks, all are cut."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(8)
        self.notes: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._links: set[Transport] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def add(self, link: Transport) -> None:
        with self._lock:
            self._links.add(link)
        if self.over:
            link.interrupt()

    def end(self) -> None:
        self._over.set()
        with self._lock:
            for link in self._links:
                link.interrupt()

    def sleep(self, seconds: float) -> None:
        self._over.wait(seconds)


class Follower(Session):
    """One program at party 1.

    `dial` opens one authenticated connection to party 0 (in the caller's thread).
    """

    def __init__(self, *arguments: Any, dial: Callable[[], Transport], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._dial = dial
        self._epoch = _Epoch()
        self._prepared: dict[str, tuple[PreparedQuery, int]] = {}
        self._thread = threading.Thread(target=self._dial_forever, name="autorep-dial", daemon=True)

    # ------------------------------------------------------------------ life

    def start(self, loop: Any) -> None:
        super().start(loop)
        self._thread.start()

    def stop(self) -> None:
        super().stop()
        self._epoch.end()

    def drop_peer(self, reason: str) -> None:
        self._epoch.end()

    # ------------------------------------------------------------------ links

    def _dial_forever(self) -> None:
        wait = FIRST_WAIT
        while not self.stopping.is_set():
            epoch = self._epoch = _Epoch()
            started = time.monotonic()
            reason = "the link ended"
            try:
                self._live(epoch)
            except AutorepError as error:
                reason = str(error)
                trouble("peer link", error, program=self.hash)
            finally:
                epoch.end()
                self.call(self._end_epoch, epoch, reason)
            wait = FIRST_WAIT if time.monotonic() - started > 10 else min(2 * wait, LONGEST_WAIT)
            self.stopping.wait(wait)

    def _live(self, epoch: _Epoch) -> None:
        """One epoch, from dialling to the loss of the link."""
        blinding = self.blinding
        if blinding is None:
            raise MaterialError("party 1 has no blinding yet; it waits for its dealer")
        setup = self._open(epoch, "setup")
        needed = self.party is None
        send_message(setup, {"needs_setup": needed})
        if receive_message(setup).get("needs_setup") or needed:
            party = self.open_weights(setup, blinding)
            if self.blinding is not blinding:
                raise MaterialError("the dealer gave new blinding meanwhile; dialling again")
            self.party = party
            event("weights opened", program=self.hash, bytes=setup.ledger.total("offline").sent)
        receive_message(setup)
        setup.close()
        commands, notes = self._open(epoch, "commands"), self._open(epoch, "notes")
        threads = [threading.Thread(target=self._send_notes, args=(epoch, notes), daemon=True)]
        for number in range(self.settings.lanes):
            threads.append(threading.Thread(target=self._lane_forever, args=(epoch, number), daemon=True))
        for thread in threads:
            thread.start()
        self._report_store(epoch)
        self.call(self._peer_up)
        try:
            while not self.stopping.is_set():
                self.call(self._command, epoch, receive_message(commands))
        finally:
            epoch.end()
            for thread in threads:
                thread.join(self.settings.timeout)

    def _open(self, epoch: _Epoch, kind: str, **fields: Any) -> Transport:
        """Dial, say what for, and compare program, blinding and parameters."""
        transport = self._dial()
        epoch.add(transport)
        send_message(transport, {"kind": kind, "program": self.hash, "epoch": epoch.name, **fields})
        handshake(transport, self.hello())
        return transport

    def _send_notes(self, epoch: _Epoch, transport: Transport) -> None:
        try:
            while not epoch.over:
                try:
                    note = epoch.notes.get(timeout=self.settings.timeout / 4)
                except queue.Empty:
                    note = {"alive": True}
                send_message(transport, note)
        except ProtocolError as error:
            trouble("notes link", error, program=self.hash)
        finally:
            epoch.end()

    def _lane_forever(self, epoch: _Epoch, number: int) -> None:
        wait = FIRST_WAIT
        while not epoch.over:
            try:
                transport = self._open(epoch, "lane", lane=number)
                self.call(self.metrics.lanes.inc)
                wait = FIRST_WAIT
                try:
                    self._serve_lane(epoch, transport)
                finally:
                    self.call(self.metrics.lanes.dec)
                    transport.close()
            except AutorepError as error:
                if not epoch.over:
                    trouble("lane", error, program=self.hash, lane=number)
                    epoch.sleep(wait)
                    wait = min(2 * wait, LONGEST_WAIT)

    def _serve_lane(self, epoch: _Epoch, transport: Transport) -> None:
        while not epoch.over:
            message = receive_message(transport)
            if "query" not in message:
                continue
            key, kit_id = str(message["query"]), str(message.get("kit"))
            query, prepared = self.waiting.pop(key, None), self._prepared.pop(kit_id, None)
            if query is None or prepared is None:
                transport.abort("party 1 does not have this query or kit")
                if query is not None:
                    self.call(self._resolve, query, QueryFailure(502, "the servers lost step; ask again"))
                raise ProtocolError(f"party 0 asked for query {key} with a kit that is not both here")
            self.running[key] = query
            event("running", query=key, kit=kit_id)
            self._run(transport, query, *prepared)

    def _run(self, transport: Transport, query: Query, prepared: PreparedQuery, offline_bytes: int) -> None:
        assert self.party is not None
        transport.ledger = Ledger()
        started = time.perf_counter()
        try:
            share = self.party.run(transport, prepared, query.share)
        except AutorepError as error:
            trouble("query failed", error, query=query.key)
            failure = QueryFailure(502, "the other server failed during the query; ask again with new masks")
            self.call(self._resolve, query, failure)
            if not isinstance(error, ProtocolError):
                transport.abort("party 1 could not run the query")
            raise
        seconds = time.perf_counter() - started
        self.call(self._resolve, query, Answer(share, seconds, transport.ledger.total("online"), offline_bytes))

    # ------------------------------------------------------------------ on the loop

    def _peer_up(self) -> None:
        self._problem("peer", None)
        event("peer connected", program=self.hash)

    def _end_epoch(self, epoch: _Epoch, reason: str) -> None:
        if "peer" not in self.problems:
            event("peer lost", program=self.hash, reason=reason)
        self._problem("peer", f"not connected: {reason}")
        self._prepared.clear()
        self.metrics.ready.set(0)
        self._fail_all(QueryFailure(503, f"the link between the servers broke ({reason}); ask again", 1))

    def _command(self, epoch: _Epoch, command: dict[str, Any]) -> None:
        """One decision of party 0."""
        match command:
            case {"prepare": str(kit_id)}:
                self._begin_prepare(kit_id, lambda name, result: self._own_prepared(epoch, name, result))
            case {"forget": str(kit_id)}:
                self._prepared.pop(kit_id, None)
            case {"discard": list(kit_ids)}:
                for kit_id in kit_ids:
                    self.store.discard(bytes.fromhex(str(kit_id)))
                self.metrics.stored.set(len(self.store))
            case {"drop": str(key), "status": int(status), "message": str(message)}:
                if (query := self.waiting.get(key)) is not None:
                    self._resolve(query, QueryFailure(status, message, 1 if status == 503 else None))

    def _own_prepared(self, epoch: _Epoch, kit_id: str, result: Any) -> None:
        if isinstance(result, AutorepError) or epoch.over:
            epoch.notes.put({"missing": kit_id})
            return
        self._prepared[kit_id] = result
        self.metrics.ready.set(len(self._prepared))
        epoch.notes.put({"prepared": kit_id})

    def _arrived(self, query: Query) -> None:
        self._epoch.notes.put({"arrived": query.key})

    def _abandoned(self, query: Query) -> None:
        self._epoch.notes.put({"gone": query.key})

    def _stored(self, kit_ids: list[str]) -> None:
        self._epoch.notes.put({"stored": kit_ids})

    def supply_idle(self) -> None:
        self._report_store(self._epoch)

    def _report_store(self, epoch: _Epoch) -> None:
        epoch.notes.put({"all_stored": [kit_id.hex() for kit_id in self.store.ids()]})

    def kits_ready(self) -> int:
        return len(self._prepared)
