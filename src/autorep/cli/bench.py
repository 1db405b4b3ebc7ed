"""`autorep bench`: everything that measures."""

from __future__ import annotations

from collections.abc import Sequence

from autorep.cli.main import dispatch

COMMANDS: dict[str, tuple[str, str, str]] = {
    "pi": ("autorep.bench.pi", "PrivateInference", "private inference of one network: latency, bytes, rounds, memory"),
    "peers": ("autorep.bench.peers", "Peers", "the same work on CrypTen, alternating with ours"),
    "kernels": ("autorep.bench.kernels", "Kernels", "each native kernel against its limit, torch and numpy"),
    "train": ("autorep.bench.train", "Train", "images per second of training epochs"),
    "growth": ("autorep.bench.growth", "Growth", "how cost grows with ReLUs, image size, width and batch"),
    "serve": ("autorep.service.load", "Serve", "throughput and latency of a deployment under load"),
    "zoo": ("autorep.report.private_accuracy", "ZooAccuracy", "accuracy of zoo models: float, fixed point, private"),
    "all": ("autorep.bench.everything", "Everything", "the headline set (quick) or the full set, recorded"),
    "tables": ("autorep.bench.tables", "Tables", "write the README's tables from the recorded results"),
}


def main(prog: str, arguments: Sequence[str]) -> int:
    """Run the benchmark named by the first argument."""
    return dispatch("AutoReP's benchmarks.", COMMANDS, prog, arguments)
