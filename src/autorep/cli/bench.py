"""`autorep bench`: everything that measures."""

from __future__ import annotations

from collections.abc import Sequence

from autorep.cli.main import dispatch

_MEASURE, _RECORDED = "autorep.cli.measure", "autorep.cli.recorded"
COMMANDS: dict[str, tuple[str, str, str]] = {
    "pi": (_MEASURE, "PrivateInference", "private inference of one network: latency, bytes, rounds, memory"),
    "cost": (_MEASURE, "Processor", "processor time of a query, all parties together, with and without the service"),
    "predict": (_MEASURE, "Prediction", "latency predicted on this machine beside latency measured"),
    "peers": (_MEASURE, "Peers", "the same work on CrypTen, alternating with ours"),
    "kernels": (_MEASURE, "Kernels", "each native kernel against its limit, torch and numpy"),
    "threads": (_MEASURE, "Threads", "what further threads give one party alone"),
    "link": (_MEASURE, "Link", "the link between two processes: bytes a second, beside TLS and TCP"),
    "train": (_MEASURE, "Train", "images per second of training epochs"),
    "growth": (_MEASURE, "Growth", "how cost grows with ReLUs, image size, width and batch"),
    "depth": (_MEASURE, "Depth", "fixed point against torch in a deep network of random weights"),
    "serve": (_MEASURE, "Serve", "throughput and latency of a deployment under load"),
    "misses": (_MEASURE, "Misses", "wrong answers that neither client nor answer betrays, far out of range"),
    "zoo": (_RECORDED, "Zoo", "accuracy of zoo models: float, fixed point, private"),
    "all": (_RECORDED, "All", "the headline set (quick) or the full set, recorded"),
    "tables": (_RECORDED, "Tables", "write the documents' tables from the recorded results"),
}


def main(prog: str, arguments: Sequence[str]) -> int:
    """Run the benchmark named by the first argument."""
    return dispatch("AutoReP's benchmarks.", {"commands": COMMANDS}, prog, arguments)
