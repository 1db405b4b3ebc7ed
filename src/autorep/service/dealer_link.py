"""A server's link to the dealer: fetches blinding once and kits whenever the store runs low.

Party 0 asks; the dealer hands it its kit first and then pushes the other one to party 1. So whatever lies in party
1's store lay in party 0's before it.
"""

from __future__ import annotations

from collections.abc import Callable

from autorep.errors import ProtocolError
from autorep.mpc.transport import Transport, handshake
from autorep.service.blinding import Blinding
from autorep.service.leader import Leader
from autorep.service.logs import event
from autorep.service.messages import receive_message, receive_result, send_message
from autorep.service.session import Session
from autorep.service.workers import Worker

AT_ONCE = 4  # kits per request, of large ones at least 2: the dealer makes the next while this server stores the last
DEALER_HELLO = {"service": "dealer"}


class DealerLink:
    """Keeps one session supplied, reconnecting as long as the session lives.

    Args:
        dial: opens one authenticated connection to the dealer.
        pair: name of this pair of servers at the dealer.
        archive: the public program, sent when the dealer does not know it yet.
    """

    def __init__(self, session: Session, dial: Callable[[], Transport], pair: str, archive: Callable[[], bytes]):
        self._session, self._dial, self._pair, self._archive = session, dial, pair, archive
        self._transport: Transport | None = None
        self._flows = False  # as the session was told
        session.metrics.dealer.set(0)
        crashed = session.metrics.crashed
        self.worker = Worker("autorep-dealer-link", self._live, session.stopping, crashed, program=session.hash)

    def _live(self) -> None:
        """One connection, from dialling to its loss."""
        try:
            self._serve(self._register())
        finally:
            self._session.metrics.dealer.set(0)
            self._tell_flows(False)
            if self._transport is not None:
                self._transport.close()

    def stop(self) -> None:
        """Cut the link; its worker ends once the session is stopping."""
        if self._transport is not None:
            self._transport.interrupt()

    def _register(self) -> Transport:
        session = self._session
        transport = self._transport = self._dial()
        handshake(transport, DEALER_HELLO)
        send_message(
            transport,
            {
                "party": session.index,
                "pair": self._pair,
                "program": session.hash,
                "comparison": session.settings.comparison,
                "alive_seconds": session.settings.timeout / 4,
            },
        )
        if receive_message(transport).get("send_program"):
            transport.send("program", self._archive())
        blinding = receive_message(transport)
        session.use_blinding(Blinding(str(blinding["blinding_id"]), bytes.fromhex(blinding["seed"])))
        session.metrics.dealer.set(1)
        event("dealer connected", program=session.hash)
        return transport

    def _serve(self, transport: Transport) -> None:
        while not self._session.stopping.is_set():
            if self._session.index == 0:
                self._ask(transport)
            else:
                self._take_push(transport)

    def _ask(self, transport: Transport) -> None:
        """Party 0: a few kits when the store is low, else a sign of life now and then."""
        session = self._session
        assert isinstance(session.machine, Leader)
        batch, missing = session.machine.missing()
        send_message(transport, {"deal": min(missing, max(2, AT_ONCE // batch)), "batch": batch})
        answer = receive_message(transport)
        self._tell_flows("coming" in answer)
        for _ in range(int(answer.get("coming", 0))):
            if not self._store(transport, str(receive_result(transport).get("kit"))):
                session.stopping.wait(1.0)  # a full disk does not empty itself at once
        session.stopping.wait(float(answer.get("wait", 0)))
        if not missing:
            session.wanted.clear()
            if not session.machine.missing()[1]:
                session.wanted.wait(session.settings.timeout / 4)

    def _tell_flows(self, flows: bool) -> None:
        """Whether the dealer is at work; said where that changes, since it wakes the loop, which answers clients."""
        if flows != self._flows:
            self._flows = flows
            self._session.post(self._session.supply_flows, flows)

    def _store(self, transport: Transport, name: str) -> bool:
        """Receive a kit, piece by piece to the disk, and say whether it lies there."""
        stored = self._session.put(name, transport.receive_file("kit", self._session.kit_bytes(name)))
        send_message(transport, {"stored": stored})
        return stored

    def _take_push(self, transport: Transport) -> None:
        """Party 1: wait for what the dealer sends."""
        message = receive_message(transport)
        if "kit" in message:
            self._store(transport, str(message["kit"]))
        elif "alive" in message:
            self._session.post(self._session.supply_idle)
        else:
            raise ProtocolError("the dealer sent a message this release does not know")
