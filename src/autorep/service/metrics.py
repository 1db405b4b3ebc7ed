"""What a server counts, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from autorep.service.session import Answer

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """The registry of one server process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels, registry = ["program"], self.registry
        self.queries = Counter(
            "autorep_queries", "Queries by outcome (HTTP status)", ["program", "status"], registry=registry
        )
        self.seconds = Histogram(
            "autorep_online_seconds", "Online time of a query", labels, buckets=_SECONDS, registry=registry
        )
        self.sent = Counter("autorep_sent_bytes", "Bytes sent to the peer online", labels, registry=registry)
        self.stored = Gauge("autorep_stored_kits", "Unused kits on disk", labels, registry=registry)
        self.ready = Gauge("autorep_ready_kits", "Kits prepared in memory", labels, registry=registry)
        self.waiting = Gauge("autorep_waiting_queries", "Queries that wait", labels, registry=registry)
        self.running = Gauge("autorep_running_queries", "Queries in flight", labels, registry=registry)
        self.lanes = Gauge("autorep_lanes", "Lanes connected to the peer", labels, registry=registry)
        self.dealer = Gauge("autorep_dealer_connected", "1 while the dealer is connected", labels, registry=registry)

    def of(self, program: str) -> ProgramMetrics:
        """The counters of one program."""
        return ProgramMetrics(self, program[:16])

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)


class ProgramMetrics:
    """One program's counters and gauges."""

    def __init__(self, metrics: Metrics, program: str) -> None:
        self._metrics, self._program = metrics, program
        self.stored = metrics.stored.labels(program)
        self.ready = metrics.ready.labels(program)
        self.waiting = metrics.waiting.labels(program)
        self.running = metrics.running.labels(program)
        self.lanes = metrics.lanes.labels(program)
        self.dealer = metrics.dealer.labels(program)

    def answered(self, answer: Answer) -> None:
        self._metrics.queries.labels(self._program, "200").inc()
        self._metrics.seconds.labels(self._program).observe(answer.seconds)
        self._metrics.sent.labels(self._program).inc(answer.traffic.sent)

    def failed(self, status: int) -> None:
        self._metrics.queries.labels(self._program, str(status)).inc()
