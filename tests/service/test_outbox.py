"""Messages of a control link: in order, whoever sends them, and never at the cost of whoever puts them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from autorep.errors import ProtocolError
from autorep.mpc.transport import MemoryTransport, memory_pair
from autorep.service.messages import ALIVE, receive_message
from autorep.service.outbox import AT_ONCE, Outbox

PATIENCE = 60.0


class Link(MemoryTransport):
    """A link that takes nothing without waiting while it is `slow`, and knows which threads sent."""

    slow = False

    def writable(self) -> bool:
        return not self.slow

    def _transfer(self, *arguments: Any) -> None:
        self.senders = [*getattr(self, "senders", []), threading.get_ident()]
        super()._transfer(*arguments)


@pytest.fixture
def served() -> Iterator[tuple[Outbox, Link, MemoryTransport, threading.Thread]]:
    """An outbox that its link's thread serves, the link, and its other end."""
    near, far = memory_pair(PATIENCE)
    near.__class__ = Link
    assert isinstance(near, Link)
    outbox = Outbox()
    outbox.put({"first": True})
    thread = threading.Thread(target=outbox.serve, args=(near, PATIENCE), daemon=True)
    thread.start()
    assert receive_message(far) == {"first": True}, "what was put before there was a link"
    yield outbox, near, far, thread
    outbox.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def settle(outbox: Outbox) -> None:
    """Until the link's thread has sent what waited."""
    while outbox._waiting:
        threading.Event().wait(0.001)


def test_a_message_goes_out_in_the_thread_that_puts_it(served: Any) -> None:
    outbox, near, far, thread = served
    settle(outbox)
    for number in range(5):
        outbox.put({"number": number})
        assert receive_message(far) == {"number": number}
    assert near.senders == [thread.ident, *5 * [threading.get_ident()]]


def test_what_the_link_does_not_take_waits_and_so_does_what_comes_after(served: Any) -> None:
    outbox, near, far, thread = served
    settle(outbox)
    near.slow = True
    outbox.put({"number": 0})
    near.slow = False
    for number in range(1, 50):
        outbox.put({"number": number})
    assert [receive_message(far)["number"] for _ in range(50)] == list(range(50))
    assert near.senders[1] == thread.ident


def test_a_long_message_is_left_to_the_thread_of_the_link(served: Any) -> None:
    outbox, near, far, thread = served
    settle(outbox)
    outbox.put({"kits": "x" * AT_ONCE})
    assert len(receive_message(far)["kits"]) == AT_ONCE
    assert near.senders[1] == thread.ident


def test_a_link_that_breaks_ends_its_thread_and_does_not_hurt_whoever_puts(served: Any) -> None:
    outbox, near, _, thread = served
    settle(outbox)
    near.abort("broken")
    outbox.put({"number": 1})
    thread.join(PATIENCE)
    assert not thread.is_alive()
    outbox.put({"number": 2})


def test_a_link_that_breaks_while_its_own_thread_sends_is_an_error_there() -> None:
    near, _ = memory_pair(PATIENCE)
    outbox = Outbox()
    outbox.put({"number": 1})
    near.abort("broken")
    outbox.serve(near, PATIENCE)
    near._failure = None
    near._transfer = lambda *_: (_ for _ in ()).throw(OSError("gone"))  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="gone"):
        outbox.serve(near, PATIENCE)


def test_signs_of_life_are_sent_while_there_is_nothing_to_say() -> None:
    near, far = memory_pair(PATIENCE)
    outbox = Outbox()
    thread = threading.Thread(target=outbox.serve, args=(near, 0.01), daemon=True)
    thread.start()
    assert [receive_message(far) for _ in range(3)] == 3 * [ALIVE]
    outbox.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
