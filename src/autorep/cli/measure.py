"""Commands that measure one thing: `autorep bench pi`, `cost`, `peers`, `kernels`, `train`, `growth` and others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autorep.bench.record import record
from autorep.bench.setting import Setting
from autorep.cli.output import emit, megabytes, table
from autorep.errors import ConfigError
from autorep.report import tables


@dataclass(frozen=True)
class Measurement:
    """What every measurement can do with its result."""

    record: str | None = None
    """Also write bench/results/NAME.json, with machine, commit, versions, date and command."""
    json: str | None = None
    """Write the result as JSON to a file, or to standard output with `-`."""

    def finish(self, result: dict[str, Any], text: str) -> None:
        """Record, print, write."""
        if self.record:
            record(self.record, result)
        emit(result, text, self.json)


@dataclass(frozen=True)
class PrivateInference(Setting, Measurement):
    """Latency, bytes, rounds and memory of private inference: two processes, TLS on loopback, random weights."""

    network: str = "resnet18"
    """Network by name, such as resnet18, wide_resnet22_8, efficientnet_b2, resnet20."""
    image_size: int | None = None
    """Rows and columns of the image; the network's usual size if not given."""
    relus: str = "12900"
    """ReLUs to keep, spread over the layers in proportion; `all` keeps every one."""
    lines: tuple[str, ...] = ()
    """Layers (see `autorep count`) whose activations are straight lines, as a budget in seconds may make them."""

    def run(self) -> int:
        from autorep.bench.networks import build_program
        from autorep.bench.pi import measure

        if self.batch < 1 or self.repeats < 1 or self.threads < 1:
            raise ConfigError("--batch, --repeats and --threads must be at least 1")
        program = build_program(self.network, self.image_size, parse_relus(self.relus), lines=self.lines)
        result = ({"lines": len(self.lines)} if self.lines else {}) | measure(program, self)
        self.finish(result, describe_inference(result))
        return 0 if result["agrees"] else 1


@dataclass(frozen=True)
class Misses(Measurement):
    """Images changed in many ways: how many are refused, answered wrongly, marked, and wrong without a mark."""

    model: str = "cifar100-resnet20-relu10pct"
    """Name from `autorep zoo`, or a saved model."""
    data_path: Path | None = None
    """Archive, folder or .npz file of the model's data set."""
    images: int = 200
    """Test images."""

    def run(self) -> int:
        from autorep import data, zoo
        from autorep.bench.misses import answer_costs, misses
        from autorep.bench.private_accuracy import calibrated, pixels

        saved = zoo.load(self.model)
        dataset = data.load(saved.info["data"], self.data_path, saved.input_shape[-1])
        program = calibrated(saved, dataset)
        rows, costs = misses(program, pixels(dataset.test, self.images)), answer_costs(program)
        text = "\n\n".join(table([list(row.values()) for row in part], list(part[0])) for part in (rows, costs))
        self.finish({"model": self.model, "rows": rows, "answers": costs}, text)
        return 0


def parse_relus(text: str) -> int | None:
    """A ReLU count as typed, None for `all`."""
    if text == "all":
        return None
    try:
        return int(text.replace(",", "").replace("_", ""))
    except ValueError:
        raise ConfigError(f"--relus {text!r}; valid: a number such as 12900, or all") from None


def _prepared(result: dict[str, Any]) -> tuple[str, str]:
    """Who made the correlated randomness, and what it took."""
    if "making_bytes" not in result:
        return "dealer", f"{result['dealer_seconds']:.3f} s, {megabytes(result['offline_bytes'])} to both parties"
    return "made by the servers", (
        f"{result['dealer_seconds']:.2f} s ({result['making_cpu_seconds_per_party']:.2f} s of each processor), "
        f"{megabytes(result['making_bytes'])} between them, {result['made_at_once']} at a time"
    )


def describe_inference(result: dict[str, Any]) -> str:
    """One private inference for people."""
    setting = f"batch {result['batch']}, {result['link']}, {result['threads']} thread(s) a party, {result['simd']}"
    party = megabytes(result["peak_party_bytes"] - result["runtime_bytes"])
    facts = [
        ("ReLUs kept", f"{result['relus']:,}"),
        ("online", f"{result['online_seconds']:.4f} s ({result['images_per_second']:.1f} images/s)"),
        ("estimated before the run", f"{result['estimate']['seconds']:.4f} s"),
        ("rounds", result["rounds"]),
        ("sent by each party", megabytes(result["online_bytes_per_party"])),
        _prepared(result),
        ("prepared by each party", f"{result['prepare_seconds']:.3f} s"),
        ("memory of a party", f"{party} beyond {megabytes(result['runtime_bytes'])} of Python"),
        ("logits against fixed point", f"{result['difference_to_fixed']:.1e}"),
    ]
    head = (tables.inference_title(result), setting)
    return "\n".join([table(facts, head), "", tables.operations(result).text()])


@dataclass(frozen=True)
class Processor(Measurement):
    """Processor time of one query, all parties together: dealer, preparation, computing, exchanges, and the service.

    Then throughput and waiting under load by 1, 4 and 16 clients. About 30 s a row on an idle machine (four rows if no
    other cases are named), at most three minutes a row. `--record cost` writes what `make readme` shows.
    """

    cases: tuple[str, ...] = ()
    """Networks and ReLUs to keep, NETWORK:COUNT or NETWORK:all; those of the recorded table if none is given."""
    levels: tuple[str, ...] = ()
    """Instruction-set levels to force, such as avx512 avx2; the processor's best if none is given."""
    repeats: int = 7
    """Queries of the engine measured per row; one more warms up."""
    service_queries: int = 20
    """Queries through a deployment on this machine; 0 leaves the service out."""
    load_seconds: float = 4.0
    """Seconds under load by each number of clients; 0 leaves it out."""

    def run(self) -> int:
        from autorep.bench.processor import CASES, measure

        cases = parse_cases(self.cases) or CASES
        result = measure(cases, self.levels, self.repeats, self.service_queries, self.load_seconds)
        texts = [tables.processor(result).text()]
        if self.load_seconds:
            texts.append(tables.load(result).text())
        self.finish(result, "\n\n".join(texts))
        return 0


@dataclass(frozen=True)
class Prediction(Measurement):
    """Latency as `autorep cost` predicts it on this machine, beside latency as measured between two processes."""

    cases: tuple[str, ...] = ()
    """Networks and ReLUs to keep, NETWORK:COUNT or NETWORK:all; six of the networks if none is given."""
    levels: tuple[str, ...] = ()
    """Instruction-set levels to force, such as avx512 avx2; the processor's best if none is given."""
    repeats: int = 5
    """Queries measured per row; one more warms up."""

    def run(self) -> int:
        from autorep.bench.prediction import CASES, measure

        result = measure(parse_cases(self.cases) or CASES, self.levels, self.repeats)
        self.finish(result, tables.prediction(result).text())
        return 0


def parse_cases(texts: Sequence[str]) -> list[tuple[str, int | None]]:
    """Networks and ReLU counts as typed."""
    pairs = [text.partition(":")[::2] for text in texts]
    return [(network, parse_relus(relus or "all")) for network, relus in pairs]


@dataclass(frozen=True)
class Peers(Measurement):
    """ResNet-18 at 32×32 on another system and on ours: latency, bytes, rounds, ratios at three budgets.

    Under AUTOREP_SIMD=avx2 both are held to AVX2; `--record peers-avx2` writes what docs/kernels.md shows of that.
    """

    system: Literal["crypten", "spu", "spu-cheetah"] = "crypten"
    """CrypTen 0.4.1, SPU 0.9.5 (tens of seconds an image), or its Cheetah (minutes), which like ours here has no
    dealer."""
    repeats: int = 7
    """Alternating inferences measured per variant, after one that warms up."""
    only: str = ""
    """Only the variants (all ReLUs, 12,900 ReLUs, all quadratic) whose name contains this."""
    peers_folder: Path = Path("build") / "peers"
    """Where the other system is installed on first use."""

    def run(self) -> int:
        from autorep.bench.peers import VARIANTS, measure

        if self.repeats < 1:
            raise ConfigError(f"--repeats {self.repeats}: at least 1, and 7 for a figure to publish")
        if not any(self.only in variant for variant in VARIANTS):
            raise ConfigError(f"--only {self.only!r}: no variant is called so; there are {', '.join(VARIANTS)}")
        result = measure(self.system, self.repeats, self.peers_folder, self.only)
        self.finish(result, tables.peers(result).text())
        return 0


@dataclass(frozen=True)
class Kernels(Measurement):
    """Every native kernel beside the processor's limit measured in the same run, and beside torch or numpy."""

    quick: bool = False
    """Fewer shapes and shorter measurements."""

    def run(self) -> int:
        from autorep.bench.kernels import measure

        result = measure(self.quick)
        self.finish(result, tables.kernels(result).text())
        return 0


@dataclass(frozen=True)
class Threads(Measurement):
    """One party alone, the other one silent: dealing, preparing and answering on one thread and on more, in turns."""

    network: str = "resnet18"
    """Network by name."""
    image_size: int | None = None
    """Rows and columns of the image; the network's usual size if not given."""
    relus: str = "12900"
    """ReLUs to keep; `all` keeps every one."""
    threads: int = 2
    """Threads to compare with one."""
    repeats: int = 20
    """Queries of each; the least time of every operation counts."""

    def run(self) -> int:
        from autorep.bench.networks import build_program
        from autorep.bench.threads import measure

        if self.threads < 2 or self.repeats < 1:
            raise ConfigError(f"--threads {self.threads} --repeats {self.repeats}: at least 2 threads, and 1 repeat")
        program = build_program(self.network, self.image_size, parse_relus(self.relus))
        result = measure(program, self.threads, self.repeats)
        cells = [(r["part"], *(f"{1e3 * r[k]:.2f} ms" for k in ("seconds", "with_threads"))) for r in result["rows"]]
        rows = [(*cell, f"{row['ratio']:.2f}×") for cell, row in zip(cells, result["rows"])]
        self.finish(result, table(rows, ("part", "one thread", f"{self.threads} threads", "faster by")))
        return 0


@dataclass(frozen=True)
class Link(Measurement):
    """Bytes a second between two processes on loopback, both ways at once, one core each: our link, TLS, plain TCP."""

    repeats: int = 30
    """Exchanges measured of every size; three more warm up."""

    def run(self) -> int:
        from autorep.bench.link import measure

        result = measure(repeats=self.repeats)
        self.finish(result, tables.link_speed(result).text())
        return 0


@dataclass(frozen=True)
class Train(Measurement):
    """Training speed: images a second of baselines, distillation, and both recipes with their phases."""

    quick: bool = False
    """ResNet-20 only, few steps."""
    methods: bool = False
    """Instead: a step of every method that chooses single ReLUs, ResNet-20, beside a distillation step."""
    threads: int | None = None
    """CPU threads; default is torch's own choice."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of forward and backward passes."""

    def run(self) -> int:
        from autorep.bench.train import Effort, measure, measure_methods

        effort = Effort(3 if self.quick else 12, threads=self.threads, precision=self.precision)
        if self.methods:
            found = measure_methods("resnet20", effort)
            self.finish(found, tables.method_speed(found).text())
            return 0 if max(found["over_distillation"].values()) <= found["bar"] else 1
        networks = ("resnet20",) if self.quick else ("resnet20", "resnet18")
        result = measure(networks, effort)
        self.finish(result, tables.speed(result).text())
        return 0 if all(row[name] <= bar for row in result["networks"] for name, bar in result["bars"].items()) else 1


@dataclass(frozen=True)
class Growth(Measurement):
    """Curves with linear fits; fails when bytes are not linear in kept ReLUs or rounds are not constant."""

    network: str = "resnet20"
    """Network whose ReLUs, image size and batch vary; widths vary on a ResNet-20 of 8 to 48 channels."""
    repeats: int = 5
    """Queries measured per point; one more warms up."""

    def run(self) -> int:
        from autorep.bench.growth import measure

        result = measure(self.network, self.repeats)
        checks = [f"{'holds' if check['holds'] else 'FAILS'}: {check['check']}" for check in result["checks"]]
        self.finish(result, "\n".join([tables.growth(result).text(), "", *checks]))
        return 0 if all(check["holds"] for check in result["checks"]) else 1


@dataclass(frozen=True)
class Depth(Measurement):
    """Fixed point against torch, full ReLU; fails when a class changes though its lead exceeds the rounding error."""

    network: str = "resnet110"
    """Network by name, with random weights."""
    images: int = 400
    """Random images."""

    def run(self) -> int:
        from autorep.bench.depth import measure

        result = measure(self.network, self.images)
        clear, kept, error = result["clear"], result["clear_kept"], result["rounding_error"]
        self.finish(
            result,
            f"{result['layers']} layers, {result['relus']} ReLUs: of {self.images} random images {clear} lead by more "
            f"than the rounding error {error:.3g}; {kept} of these keep the class of torch",
        )
        return 0 if result["holds"] else 1


@dataclass(frozen=True)
class Serve(Measurement):
    """Load two running servers, or a deployment started on this machine, and report throughput and latencies."""

    servers: tuple[str, ...] = ()
    """URLs of server 0 and server 1."""
    program: Path | None = None
    """Instead of servers: a compiled program's directory, served on this machine for the measurement."""
    ca: Path | None = None
    """Certificate authority of the servers."""
    token_file: Path | None = None
    """File with a client's token."""
    clients: int = 4
    """Clients that ask at the same time, each one image after another."""
    lanes: int = 2
    """Lanes of a deployment started here."""
    seconds: float = 10.0
    """How long to ask."""

    def run(self) -> int:
        import numpy as np

        from autorep.service.client import Client
        from autorep.service.load import run_load, summary
        from autorep.service.local import LocalDeployment
        from autorep.service.tokens import read_secret

        if bool(self.servers) == (self.program is not None):
            raise ConfigError("bench serve: give either --servers URL0 URL1 or --program DIRECTORY")
        with ExitStack() as stack:
            urls, ca = self.servers, self.ca
            if self.program is not None:
                deployment = stack.enter_context(LocalDeployment(self.program, lanes=self.lanes))
                urls, ca = deployment.urls, deployment.ca
            token = read_secret(self.token_file)
            clients = [
                stack.enter_context(Client(urls, token=token, ca=ca, concurrency=1)) for _ in range(self.clients)
            ]
            shape = clients[0].description.input_shape
            images = np.random.default_rng(0).random((16, *shape))  # public test data
            run_load(clients, images, min(1.0, self.seconds))  # connections, caches
            result = summary(*run_load(clients, images, self.seconds))
        rows = [(name.replace("_", " "), value) for name, value in result.items() if name != "errors"]
        rows += [("error", f"{count} × {text}") for text, count in result["errors"].items()]
        self.finish(result, table(rows, ("what", "value")))
        return 0
