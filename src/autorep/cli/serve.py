"""Commands of a deployment: prepare, import, dealer, serve, ping."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from autorep.cli.output import emit, megabytes, table, writable
from autorep.errors import ConfigError
from autorep.settings import require

if TYPE_CHECKING:
    import ssl

    from autorep.service.dealer import DealerService


@dataclass(frozen=True)
class Prepare:
    """Write correlated randomness for two parties to disk, to serve without a dealer on line.

    Writes OUT/party0 and OUT/party1; carry each to its server and move it in there with `autorep import`. With
    `--preparation two-party` no dealer is needed at all: both servers run this together, and each writes its own half.
    """

    bundle: Path
    """Directory written by `autorep compile`; of the parameters only --party's own shares are read, if any."""
    out: Path
    """Directory to write to."""
    count: int = 100
    """Inferences to prepare."""
    comparison: Literal["dcf", "short", "bits", "auto"] | None = None
    """How kept ReLUs are compared (default auto: what suits --link best, without a dealer bits); the servers must use
    the same."""
    link: Literal["loopback", "lan", "wan"] = "lan"
    """With --comparison auto: the link between the servers, and from the dealer; `autorep cost` compares them."""
    preparation: Literal["dealer", "two-party", "ot"] = "dealer"
    """dealer: made here, for both. two-party: by both servers together; ot: so by oblivious transfer alone."""
    party: Literal[0, 1] | None = None
    """Without a dealer: which server this is."""
    peer: str = "127.0.0.1:9441"
    """Without a dealer: HOST:PORT where party 0 waits and which party 1 dials."""
    keys: Path | None = None
    """Without a dealer: directory of this party's certificate (`autorep keys`)."""
    timeout: float = 60.0
    """Without a dealer: seconds without progress after which the link fails."""
    json: str | None = None
    """Write the result as JSON to this file (- for standard output)."""

    def run(self) -> int:
        from autorep.mpc.choice import chosen
        from autorep.mpc.two_party.names import checked_comparison
        from autorep.program.files import load_public
        from autorep.service.prepare import prepare

        require(self.count >= 1, "count", self.count, "at least 1 inference")
        writable(self.out)
        if self.preparation != "dealer":
            checked_comparison(self.preparation, None if self.comparison == "auto" else self.comparison)
            return self._together()
        program = load_public(self.bundle / "public")
        comparison = chosen(program, self.comparison, self.preparation, self.link)
        sizes = prepare(program, self.out, self.count, comparison)
        result = {
            "count": self.count,
            "comparison": comparison,
            "bytes_party0": sizes[0],
            "bytes_party1": sizes[1],
        }
        rows = [(f"party {i}", megabytes(size), megabytes(size / max(1, self.count))) for i, size in enumerate(sizes)]
        text = table(rows, ("for", "in all", "per inference"), "lrr")
        emit(result, text + f"\nserve them with --comparison {comparison}", self.json)
        return 0

    def _together(self) -> int:
        from autorep.service.messages import parse_address
        from autorep.service.prepare_together import prepare_together

        if self.party is None or self.keys is None:
            raise ConfigError(f"--preparation {self.preparation} needs --party 0 or 1 and --keys, at both servers")
        peer = parse_address(self.peer, "--peer")
        size = prepare_together(
            self.bundle, self.party, peer, self.keys, self.out, self.count, self.preparation, self.timeout
        )
        result = {"count": self.count, f"bytes_party{self.party}": size}
        row = (f"party {self.party}", megabytes(size), megabytes(size / self.count))
        emit(result, table([row], ("for", "in all", "per inference"), "lrr"), self.json)
        return 0


@dataclass(frozen=True)
class Import:
    """Move what `autorep prepare` wrote into this server's store; the server must not be running.

    Kits that the record has as used are deleted, not moved: each can be used once, whatever is copied or restored.
    """

    kits: tyro.conf.Positional[Path]
    """This server's half of `autorep prepare`'s output (OUT/party0 or OUT/party1); it is empty afterwards."""
    store: Path
    """Directory for correlated randomness, this server's alone."""
    begin: bool = False
    """Begin a record of used kits: only at a server that has never used any."""
    json: str | None = None
    """Write the result as JSON to this file (- for standard output)."""

    def run(self) -> int:
        from autorep.service.prepare import move_in

        moved = move_in(self.kits, self.store, self.begin)
        rows = [(entry.program[:16] + "…", str(entry.kits), str(entry.refused)) for entry in moved]
        text = table(rows, ("program", "kits moved", "used before, deleted"), "lrr")
        emit({"programs": [asdict(entry) for entry in moved]}, text, self.json)
        return 1 if any(entry.refused for entry in moved) else 0


@dataclass(frozen=True)
class Dealer:
    """Serve correlated randomness to any number of server pairs; sees no image, weight or answer."""

    keys: Path
    """Directory of the dealer's certificate (`autorep keys`)."""
    listen: str = "127.0.0.1:9444"
    """HOST:PORT to wait for servers at."""
    state: Path | None = None
    """Directory for the blinding of each pair; without it, servers must start anew after the dealer restarts."""
    timeout: float = 30.0
    """Seconds without progress after which a link fails."""
    watch: str | None = None
    """HOST:PORT for /healthz and /metrics (plain HTTP, for the machine itself or a monitoring network)."""
    threads: int = 1
    """Threads of one computation."""

    def run(self) -> int:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        use_threads(self.threads)
        from autorep import _native
        from autorep.mpc.tls import server_context
        from autorep.service.dealer import DealerService
        from autorep.service.dealer_watch import Watch
        from autorep.service.listener import Listener
        from autorep.service.logs import event, setup_logging
        from autorep.service.messages import parse_address
        from autorep.service.workers import end_process

        _native.keep_freed_memory()
        service = DealerService(self.state)
        address = parse_address(self.listen, "--listen")
        context = server_context(self.keys)
        listener = Listener(
            address, context, {"party0", "party1"}, self.timeout, service.serve_link, service.metrics.crashes.inc
        )
        service.metrics.certificate(self.keys / "certificate.pem")
        watch = None if self.watch is None else Watch(parse_address(self.watch, "--watch"), service.metrics, listener)
        setup_logging("dealer")
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        signal.signal(signal.SIGHUP, lambda *_: self._reload(context, service))
        listener.start()
        if watch is not None:
            watch.start()
        event("dealing", port=listener.port)
        stop.wait()
        service.stopping.set()
        listener.close()
        event("stopped", dealt=service.dealt)
        end_process()

    def _reload(self, context: ssl.SSLContext, service: DealerService) -> None:
        """Show a new certificate from now on; SIGHUP."""
        from autorep.service.logs import event, trouble

        try:
            context.load_cert_chain(self.keys / "certificate.pem", self.keys / "key.pem")
            context.load_verify_locations(self.keys / "ca.pem")
            service.metrics.certificate(self.keys / "certificate.pem")
            event("reloaded", what="certificates")
        except (OSError, ValueError) as error:
            trouble("not reloaded", error, what="certificates")


@dataclass(frozen=True)
class Serve:
    """Run one of the two inference servers; or all roles on this machine: `autorep serve --local NAME`.

    `autorep serve --local NAME --help` explains that one.
    """

    party: Literal[0, 1]
    """Which of the two this is. Party 0 waits for its peer, party 1 connects to it; the order of starting is free."""
    bundle: tuple[Path, ...]
    """Directories with public/ and this party's folder (`autorep compile`), or folders of such directories; several
    programs may be served. SIGHUP reads them again, with tokens and certificates."""
    keys: Path
    """Directory of this party's certificate (`autorep keys`)."""
    store: Path
    """Directory for correlated randomness, this server's alone."""
    listen: str = "127.0.0.1:8440"
    """HOST:PORT of the client API (HTTPS)."""
    peer: str = "127.0.0.1:9440"
    """HOST:PORT where party 0 waits for party 1; party 0 listens there, party 1 connects there."""
    dealer: str | None = None
    """HOST:PORT of the dealer; leave out to use only what `autorep import` moved into the store."""
    making: str = "127.0.0.1:9441"
    """HOST:PORT where party 0 waits for party 1 to make kits, when there is no dealer; a link of its own."""
    pair: str = "default"
    """Public name of this pair of servers, at the dealer and for balancers in front of several pairs."""
    tokens: Path | None = None
    """JSON file of client names and token hashes; default: tokens.json beside the certificate."""
    open: bool = False
    """Serve clients without tokens."""
    urls: tuple[str, ...] = ()
    """Public URLs of server 0 and server 1, for the browser page (https://…)."""
    origins: tuple[str, ...] = ()
    """Further web origins whose pages may ask."""
    https_certificate: Path | None = None
    """Certificate chain for clients, when it is not the one in the keys directory."""
    https_key: Path | None = None
    """Its private key."""
    lanes: int = 2
    """Queries in flight at the same time."""
    ready: int = 4
    """Kits prepared in memory ahead of queries (at most 2 GB of them, at least one; four times as many small ones)."""
    ahead: int = 32
    """Kits kept on disk (at most 16 GB of them, at least one). 0 without a dealer: none are made, only those of
    `autorep import` are used."""
    batch: int | None = None
    """Queries, of any clients, that run together in one pass when as many wait (1: each alone); the same at
    both servers. Default 4 with a dealer, where kits for so many are small enough; 1 without."""
    queue: int = 128
    """Queries that may wait; when there are more, every client still gets its fair share of them."""
    per_client: int = 64
    """Queries of one client that may wait."""
    rate: float = 0.0
    """Images a second for each client (0: no limit)."""
    burst: int = 20
    """Images a client may send at once before the rate counts."""
    connections: int = 1024
    """Connections of clients open at the same time; the idlest make room for newcomers."""
    per_address: int = 256
    """Of these, from one address."""
    proxies: tuple[str, ...] = ()
    """Addresses of reverse proxies whose X-Forwarded-For is believed, where --open lets addresses stand for clients."""
    threads: int = 1
    """Threads of one computation; lanes and cores decide how much runs side by side, so that one is best under load."""
    half_expiry: float = 15.0
    """Seconds after which a query whose other half did not arrive is dropped."""
    timeout: float = 30.0
    """Seconds without progress after which a link or a waiting query fails."""
    comparison: Literal["dcf", "short", "bits", "auto"] | None = None
    """How kept ReLUs are compared (default auto: for each program what suits --link best, as `autorep cost` shows;
    without a dealer bits); the same at both servers."""
    link: Literal["loopback", "lan", "wan"] = "lan"
    """The link between the servers, and from the dealer, that --comparison auto chooses for."""
    preparation: Literal["dealer", "two-party", "ot"] = "dealer"
    """Who makes kits: a dealer, or the two servers themselves, in a process of low priority beside each. two-party: by
    ring-LWE encryption and oblivious transfer; ot: by oblivious transfer alone."""

    def run(self) -> int:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
        use_threads(self.threads)
        if self.preparation != "dealer" and self.dealer is not None:
            raise ConfigError(f"--preparation {self.preparation} needs no dealer; leave out --dealer")
        from autorep.mpc.two_party.names import checked_comparison
        from autorep.service.api import ApiSettings
        from autorep.service.door import DoorSettings
        from autorep.service.logs import setup_logging
        from autorep.service.messages import parse_address
        from autorep.service.queries import SessionSettings
        from autorep.service.server import Server, ServerSettings
        from autorep.service.web import https_only
        from autorep.service.workers import end_process

        checked_comparison(self.preparation, None if self.comparison == "auto" else self.comparison)
        session = SessionSettings(
            lanes=self.lanes,
            ready=self.ready,
            ahead=self.ahead,
            queue=self.queue,
            per_client=self.per_client,
            half_expiry=self.half_expiry,
            timeout=self.timeout,
            preparation=self.preparation,
            batch=self._batch(),
        )
        together = self.preparation != "dealer" and self.ahead > 0
        for url in self.urls:
            https_only(url, "--urls")
        api = ApiSettings(self._token_file(), self.rate, self.burst, self.urls, self.origins, self.proxies, self.pair)
        settings = ServerSettings(
            party=self.party,
            listen=parse_address(self.listen, "--listen"),
            peer=parse_address(self.peer, "--peer"),
            dealer=None if self.dealer is None else parse_address(self.dealer, "--dealer"),
            making=parse_address(self.making, "--making") if together else None,
            bundles=self.bundle,
            store=self.store,
            keys=self.keys,
            pair=self.pair,
            https_certificate=self.https_certificate,
            https_key=self.https_key,
            session=session,
            comparison=self.comparison,
            link=self.link,
            api=api,
            door=DoorSettings(self.connections, self.per_address),
        )
        setup_logging(f"party{self.party}")
        Server(settings).run()
        end_process()

    def _batch(self) -> int:
        from autorep.service.queries import MOST_AT_ONCE

        if self.preparation != "dealer":
            if self.batch not in (None, 1):
                raise ConfigError(f"--batch {self.batch}: without a dealer every query has its own kit; leave it out")
            return 1
        batch = 4 if self.batch is None else self.batch
        if not 1 <= batch <= MOST_AT_ONCE:
            raise ConfigError(f"--batch {batch}: from 1 (each query alone) to {MOST_AT_ONCE}")
        return batch

    def _token_file(self) -> Path | None:
        if self.open:
            return None
        path = self.tokens or self.keys / "tokens.json"
        if not path.exists():
            raise ConfigError(f"{path}: no such token file; name one with --tokens, or serve everybody with --open")
        return path


@dataclass(frozen=True)
class Ping:
    """Check every link of a deployment and say what is wrong with it."""

    keys: Path
    """A role's certificate directory (to check peer and dealer as that role), or client/ (to check servers)."""
    servers: tuple[str, ...] = ()
    """URLs of server 0 and server 1."""
    peer: str | None = None
    """HOST:PORT where party 0 waits for party 1 (needs party 1's keys)."""
    dealer: str | None = None
    """HOST:PORT of the dealer (needs a party's keys)."""
    making: str | None = None
    """HOST:PORT where party 0 waits to make kits without a dealer (needs party 1's keys)."""
    bundle: Path | None = None
    """Program directory that both ends must have."""
    timeout: float = 5.0
    """Seconds to wait for each."""
    json: str | None = None
    """Write the result as JSON to this file (- for standard output)."""

    def run(self) -> int:
        from autorep.service.ping import Links, check_links

        links = Links(self.servers, self.peer, self.dealer, self.making)
        results = check_links(self.keys, links, self.bundle, self.timeout)
        if not results:
            raise ConfigError("ping: nothing to check; name --servers, --peer, --dealer or --making")
        rows = [(r.name, "ok" if r.ok else r.kind, f"{1000 * r.seconds:.1f}", r.text) for r in results]
        text = table(rows, ("link", "state", "ms", "detail"), "llrl")
        document = {"ok": all(r.ok for r in results), "links": [r.as_dict() for r in results]}
        emit(document, text, self.json)
        return 0 if document["ok"] else 1


def use_threads(count: int) -> None:
    """Let this process compute with so many threads; only works before numpy is loaded."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, str(count))
    from autorep import _native

    _native.set_threads(count)
