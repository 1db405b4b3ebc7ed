"""What the dealer counts, and a small plain HTTP server that shows it: /healthz and /metrics."""

from __future__ import annotations

import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest

from autorep.errors import ConfigError

if TYPE_CHECKING:
    from autorep.service.listener import Listener

_NO_ROOM_WAIT = 0.2


class DealerMetrics:
    """The registry of one dealer process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.dealt = Counter("autorep_dealer_kits", "Kits both servers of a pair have stored", registry=registry)
        self.wasted = Counter("autorep_dealer_wasted_kits", "Kits that party 1 did not take", registry=registry)
        self.connected = Gauge("autorep_dealer_servers", "Servers connected, by role", ["role"], registry=registry)
        self.crashes = Counter("autorep_crashes", "Unexpected errors the dealer survived", registry=registry)
        self.certificates = Gauge(
            "autorep_certificate_expiry_seconds", "When a certificate expires (Unix time)", ["use"], registry=registry
        )
        ProcessCollector(registry=registry)

    def certificate(self, path: Path) -> None:
        """Note when the certificate that is used from now on expires."""
        found = x509.load_pem_x509_certificate(path.read_bytes())
        self.certificates.labels("links").set(found.not_valid_after_utc.timestamp())


class _PatientServer(ThreadingHTTPServer):
    """Waits a little when there is no descriptor for a connection, instead of trying all the time."""

    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NO_ROOM_WAIT)
            raise


class Watch:
    """Answers /healthz (503 when the listener does not accept any more) and /metrics."""

    def __init__(self, address: tuple[str, int], metrics: DealerMetrics, listener: Listener) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._send(200, generate_latest(metrics.registry), "text/plain; version=0.0.4")
                elif self.path == "/healthz":
                    problem = listener.worker.problem
                    self._send(503 if problem else 200, (problem or "ok").encode(), "text/plain")
                else:
                    self._send(404, b"/healthz or /metrics", "text/plain")

            def _send(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Nothing: whoever watches comes often."""

        try:
            self._server = _PatientServer(address, Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {address[0]}:{address[1]} (--watch): {error.strerror or error}"
            ) from None

    @property
    def port(self) -> int:
        """The port, also when the system chose it."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self._server.serve_forever, name="autorep-watch", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
