"""Made-up runs and benchmark results in the formats that training and benchmarks write, for the report's tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LAYERS = (("relu", (4, 8, 8), 60), ("layer1.0.relu1", (4, 8, 8), 20), ("layer2.0.relu1", (8, 4, 4), 3))


def write_run(folder: Path, name: str, accuracy: float = 90.0, finished: bool = True, **settings: Any) -> Path:
    """A replacement run of five epochs; `settings` override the defaults."""
    directory = folder / name
    directory.mkdir(parents=True)
    chosen = {"model": "resnet20", "data": "cifar10", "recipe": "autorep", "budget": 0.03, "epochs": 5,
              "function": "quadratic", "hysteresis": 0.003, "out": str(directory), **settings}  # fmt: skip
    (directory / "settings.json").write_text(json.dumps(chosen))
    kept = sum(count for _, _, count in LAYERS)
    total = sum(int(np.prod(shape)) for _, shape, _ in LAYERS)
    entries: list[dict[str, Any]] = [{"event": "stages", "step": 0, "baseline": 92.5, "calibrated": 20.0}]
    for epoch in range(1, 6):
        relus = max(kept, round(total * (1 - epoch / 4) ** 3))
        entries.append({"event": "epoch", "epoch": epoch, "held_out_accuracy": accuracy - 10 / epoch, "relus": relus,
                        "flips": 400 // epoch**2, "train_accuracy": 80.0, "seconds": 1.0})  # fmt: skip
    if finished:
        entries.append({"event": "result", "test_accuracy": accuracy, "teacher_test_accuracy": 92.6, "relus": kept,
                        "relus_total": total})  # fmt: skip
        _write_model(directory)
    (directory / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return directory


def write_zoo_model(folder: Path, name: str, **settings: Any) -> None:
    """A finished model without its run."""
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {"model": "resnet18", "data": "cifar100", **settings}
    result = {"test_accuracy": 74.0, "teacher_test_accuracy": 77.5, "relus": 12_900, "relus_total": 491_520}
    (folder / f"{name}.json").write_text(json.dumps({"format": 1, "layers": [], **chosen, "result": result}))


def outcome(series: str, budget: int, accuracy: float, seed: int = 0, seconds: float | None = 0.5) -> dict[str, Any]:
    """One run of a recorded experiment; no seconds where its network does not compile."""
    private = {} if seconds is None else {"loopback": seconds / 50, "lan": seconds / 40, "wan": seconds}
    return {"series": series, "budget": budget, "seed": seed, "accuracy": accuracy, "relus": budget,
            "relus_total": 188_416, "epochs": 3, "private_seconds": private}  # fmt: skip


def write_experiment(folder: Path, outcomes: list[dict[str, Any]]) -> None:
    """What `autorep experiment --record` writes."""
    path = write_record(folder, "methods", {"network": "resnet20", "data": "cifar10", "outcomes": outcomes})
    path.write_text(path.read_text().replace('"name": "methods"', '"name": "experiments/methods"'))


def _write_model(directory: Path) -> None:
    tensors, rows = {}, []
    generator = np.random.default_rng(0)
    for name, shape, count in LAYERS:
        mask = np.zeros(int(np.prod(shape)), np.uint8)
        mask[generator.permutation(mask.size)[:count]] = 1
        tensors[f"{name}.mask"] = np.packbits(mask, bitorder="little")
        rows.append({"name": name, "relus": mask.size, "kept": count, "channels": shape[0], "shape": list(shape)})
    save_file(tensors, directory / "model.safetensors")
    (directory / "model.json").write_text(json.dumps({"format": 1, "layers": rows}))


def write_record(folder: Path, name: str, result: Any) -> Path:
    """A recorded benchmark result with its provenance."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    document = {"name": name, "date": "2026-01-02T03:04:05+00:00", "command": "autorep bench pi", "commit": "c0ffee",
                "machine": {"processor": "Sample CPU", "cores": 2}, "versions": {}, "result": result}  # fmt: skip
    path.write_text(json.dumps(document))
    return path


def inference(relus: int, seconds: float, **more: Any) -> dict[str, Any]:
    """What `autorep bench pi` records, as far as the report reads it."""
    operations = {"Conv": 0.5 * seconds, "Activation": 0.2 * seconds, "exchanges": 0.2 * seconds, "Add": 0.02 * seconds}
    return {"network": "resnet18", "image_size": 32, "relus": relus, "online_seconds": seconds, "rounds": 34,
            "online_bytes_per_party": 7_100_000, "offline_bytes": 40_000_000 + 1308 * relus, "dealer_seconds": 0.3,
            "offline_seconds": 0.5, "operations": operations, "link": "loopback", "batch": 1, "threads": 1,
            "layers": [], "comparison": "dcf", "peak_party_bytes": 4e8, "runtime_bytes": 5e7, **more}  # fmt: skip


def write_inferences(folder: Path, *results: dict[str, Any]) -> None:
    """Each in a file of its own, as `autorep bench pi --record NAME` writes them."""
    for number, result in enumerate(results):
        write_record(folder, f"inference-{number}", result)


def write_everything(folder: Path) -> Path:
    """One of each: runs that differ in recipe and function, inference, peers, growth."""
    write_run(folder / "runs", "default-3", 90.4)
    write_run(folder / "runs", "faithful-3", 87.9, recipe="faithful")
    write_run(folder / "runs", "first-order-3", 89.1, function="linear")
    write_run(folder / "runs", "unfinished", finished=False, hysteresis=0.0)
    results = folder / "results"
    write_inferences(results, *(inference(r, s) for r, s in ((12_900, 0.08), (50_000, 0.09), (491_520, 0.3))))
    peers = [("autorep", "all relu", 0.3), ("crypten", "all relu", 1.8), ("autorep", "12,900 relus", 0.08)]
    rows = [{"system": s, "variant": v, "seconds": t, "bytes_per_party": 7e6, "rounds": 34} for s, v, t in peers]
    write_record(results, "peers", {"rows": rows})
    parts = {"dealer": 0.05, "prepare": 0.05, "compute": 0.05, "exchange": 0.01}
    engine = {"network": "resnet18", "image_size": 32, "relus": 12900, "simd": "avx2", "cpu_seconds": parts}
    served = dict.fromkeys(("dealer", "party0", "party1", "client_seconds_p50"), 0.07) | {"total": 0.21, "parts": {}}
    queries = [engine | {"total_cpu_seconds": 0.16}, engine | {"total_cpu_seconds": 0.16, "service": served}]
    write_record(results, "cost", {"rows": queries})
    curves = [
        {"x": x, "y": y, "points": [[n, 2 * n + 5] for n in (1000, 4000, 9000)], "fit": {"slope": 2, "intercept": 5}}
        for x in ("kept ReLUs", "pixels of the image")
        for y in ("online, ms", "sent per party, MB", "prepared ahead, MB")
    ]
    write_record(results, "growth", {"curves": curves})
    write_zoo_model(folder / "zoo", "cifar100-resnet18")
    write_experiment(results / "experiments", [outcome("AutoReP", 5652, 91.0), outcome("SNL", 5652, 75.5)])
    return folder
