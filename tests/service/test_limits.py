"""Fair queueing, rates and remembered ids."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from autorep.service.limits import FairQueue, RateLimit, Recent
from autorep.service.queries import SessionSettings


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=40))
@settings(max_examples=100, deadline=None)
def test_queue_loses_nothing_and_keeps_each_clients_order(pushed: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    for item in pushed:
        queue.push(item[0], item)
    popped = [queue.pop() for _ in range(len(queue))]
    assert len(queue) == 0
    for client in "abc":
        assert [item for item in popped if item[0] == client] == [item for item in pushed if item[0] == client]


def test_busy_client_delays_only_itself() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(5):
        queue.push("busy", f"busy {i}")
    queue.push("quiet", "quiet 0")
    assert [queue.pop() for _ in range(3)] == ["busy 0", "quiet 0", "busy 1"]


def test_rate_allows_a_burst_then_the_rate_for_each_client() -> None:
    now = [0.0]
    limit = RateLimit(rate=2.0, burst=3, clock=lambda: now[0])
    assert [limit.wait("a") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert limit.wait("a") == 0.5
    assert limit.wait("b") == 0.0
    now[0] = 0.5
    assert limit.wait("a") == 0.0
    assert limit.wait("a") > 0
    assert RateLimit(0.0, 1, lambda: now[0]).wait("a") == 0.0


def test_rate_counts_the_images_of_a_query_at_once() -> None:
    now = [0.0]
    limit = RateLimit(rate=2.0, burst=4, clock=lambda: now[0])
    assert limit.wait("a", 3) == 0.0
    assert limit.wait("a", 2) == 0.5, "what is refused costs nothing,"
    assert limit.wait("a", 1) == 0.0, "so that less may pass"
    assert limit.wait("b", 6) == 0.0, "more than a burst passes when the bucket is full,"
    assert limit.wait("b", 1) == 1.5, "and is paid for later"


def test_recent_forgets_the_oldest() -> None:
    recent = Recent(2)
    for key in ("a", "b", "c"):
        recent.add(key)
    assert "a" not in recent
    assert "b" in recent
    assert "c" in recent


def test_large_kits_are_kept_by_their_bytes() -> None:
    settings = SessionSettings(ready=4, ahead=32)
    assert settings.for_kits_of(1 << 20) == SessionSettings(ready=16, ahead=32, held=16, slack=16)
    assert settings.for_kits_of((1 << 20) + 1) == SessionSettings(ready=4, ahead=32, held=16, slack=16)
    assert settings.for_kits_of(1 << 25) == SessionSettings(ready=4, ahead=32, held=16, slack=8)
    assert settings.for_kits_of(1 << 30) == SessionSettings(ready=2, ahead=16, held=8)
    assert settings.for_kits_of(100 << 30) == SessionSettings(ready=1, ahead=1)
    together = SessionSettings(preparation="two-party").for_kits_of(1 << 20)
    assert (together.ready, together.held, together.slack) == (4, 0, 0), "too dear to lose in a crash"
