"""What a server counts, for Prometheus."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from autorep.service.processor_time import ThreadTimes

if TYPE_CHECKING:
    from autorep.service.queries import Answer, QueryFailure

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
        self.latency = Histogram(
            "autorep_query_seconds", "From a half's arrival to its answer", labels, buckets=_SECONDS, registry=registry
        )
        self.queued = Histogram(
            "autorep_queue_seconds", "From a half's arrival to its start", labels, buckets=_SECONDS, registry=registry
        )
        self.refused = Counter(
            "autorep_refusals", "Queries not answered, by reason", ["program", "reason"], registry=registry
        )
        self.crashes = Counter("autorep_crashes", "Unexpected errors that workers survived", labels, registry=registry)
        self.runs = Counter("autorep_runs", "Runs begun, of one query or several together", labels, registry=registry)
        self.sent = Counter("autorep_sent_bytes", "Bytes sent to the peer online", labels, registry=registry)
        self.stored = Gauge("autorep_stored_kits", "Unused kits on disk", labels, registry=registry)
        self.kits_refused = Counter(
            "autorep_refused_kits", "Kits turned away, by reason", ["program", "reason"], registry=registry
        )
        self.ready = Gauge("autorep_ready_kits", "Kits prepared in memory", labels, registry=registry)
        self.waiting = Gauge("autorep_waiting_queries", "Queries that wait", labels, registry=registry)
        self.running = Gauge("autorep_running_queries", "Queries in flight", labels, registry=registry)
        self.lanes = Gauge("autorep_lanes", "Lanes connected to the peer", labels, registry=registry)
        self.door = Counter(
            "autorep_connections_closed", "Connections closed for want of room or patience", ["reason"],
            registry=registry,
        )  # fmt: skip
        self.connections = Gauge("autorep_connections", "Open connections of clients", registry=registry)
        self.certificates = Gauge(
            "autorep_certificate_expiry_seconds", "When a certificate expires (Unix time)", ["use"], registry=registry
        )
        self.reloads = Counter("autorep_reloads", "Reloads on SIGHUP, by outcome", ["outcome"], registry=registry)
        ProcessCollector(registry=registry)
        registry.register(ThreadTimes())
        self.dealer = Gauge("autorep_dealer_connected", "1 while the dealer is connected", labels, registry=registry)
        self.making = Gauge(
            "autorep_making_connected", "1 while the servers are connected to make kits", labels, registry=registry
        )
        self.made = {
            name: Counter(f"autorep_making_{name}", text, labels, registry=registry)
            for name, text in (
                ("kits", "Kits made with the other server"),
                ("seconds", "Seconds spent making kits"),
                ("cpu_seconds", "Processor seconds of this server spent making kits"),
                ("sent_bytes", "Bytes sent to the other server to make kits"),
                ("failures", "Times that making kits was cut off"),
            )
        }

    def of(self, program: str) -> ProgramMetrics:
        """The counters of one program."""
        return ProgramMetrics(self, program[:16])

    def forget(self, program: str) -> None:
        """A program is not served any more: its gauges would only mislead."""
        for gauge in (self.stored, self.ready, self.waiting, self.running, self.lanes, self.dealer, self.making):
            with contextlib.suppress(KeyError):
                gauge.remove(program[:16])

    def refused_at_door(self, failure: QueryFailure) -> None:
        """A request was turned away before it reached a program."""
        self.queries.labels("", str(failure.status)).inc()
        self.refused.labels("", failure.reason or "malformed").inc()

    def certificate(self, use: str, path: Path) -> None:
        """Note when the certificate that is used from now on expires."""
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        self.certificates.labels(use).set(certificate.not_valid_after_utc.timestamp())

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

    @property
    def dealer(self) -> Gauge:
        """Shown only by servers that have a dealer."""
        return self._metrics.dealer.labels(self._program)

    @property
    def making(self) -> Gauge:
        """Shown only by servers that make their own kits."""
        return self._metrics.making.labels(self._program)

    def answered(self, answer: Answer, seconds: float) -> None:
        """A query was answered, so many seconds after it arrived."""
        self._metrics.queries.labels(self._program, "200").inc()
        self._metrics.seconds.labels(self._program).observe(answer.seconds)
        self._metrics.latency.labels(self._program).observe(seconds)
        self._metrics.sent.labels(self._program).inc(answer.traffic.sent)

    def queued(self, seconds: float) -> None:
        """A query waited so long for its start."""
        self._metrics.queued.labels(self._program).observe(seconds)

    def started(self) -> None:
        """A run began, of one query or of several together."""
        self._metrics.runs.labels(self._program).inc()

    def failed(self, failure: QueryFailure) -> None:
        """A query was not answered."""
        self._metrics.queries.labels(self._program, str(failure.status)).inc()
        self._metrics.refused.labels(self._program, failure.reason or "other").inc()

    def crashed(self) -> None:
        """A worker met an error nobody expected, and goes on."""
        self._metrics.crashes.labels(self._program).inc()

    def made(self, kits: int, seconds: float, cpu_seconds: float, sent: int) -> None:
        """Kits were made with the other server."""
        spent = {"kits": kits, "seconds": seconds, "cpu_seconds": cpu_seconds, "sent_bytes": sent}
        for name, value in spent.items():
            self._metrics.made[name].labels(self._program).inc(value)

    def making_failed(self) -> None:
        """Making kits was cut off."""
        self._metrics.made["failures"].labels(self._program).inc()

    def kits_refused(self, reason: str, kits: int = 1) -> None:
        """Kits turned away: `used` before, or `unusable` (damaged, for another program, no room on the disk)."""
        self._metrics.kits_refused.labels(self._program, reason).inc(kits)
