"""Commands around the Program: `autorep check`, `compile`, `calibrate`, `compare`, `cost`."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from autorep.cli.named import calibration_pixels, first_pixels, is_network, load_program, network, program_of, sketch
from autorep.cli.output import emit, megabytes, table, writable
from autorep.errors import ConfigError
from autorep.settings import require

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from autorep.modes import Differences, Program
    from autorep.mpc.cost import Cost as CountedCost
    from autorep.training.compiled import SavedModel


@dataclass(frozen=True)
class Check:
    """List every operation of a network that the compiler cannot translate; exit code 1 when there is one."""

    model: Annotated[str, tyro.conf.Positional]
    """Network name, saved model, zoo name, FILE.onnx, FILE.pt2, or FILE.py:FUNCTION that returns a torch module."""
    input_shape: tuple[int, ...] = ()
    """Channels, rows and columns of one input; default is the model's own."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep.compiler.compile import check

        module, example = network(self.model, self.input_shape)
        problems = check(module, example)
        text = "\n".join([f"{self.model}: every operation can be compiled", *self._pooling(module, example)])
        if problems:
            lines = [f"{p.path}: {p.operation}, {os.path.relpath(p.source)}\n    {p.advice}" for p in problems]
            text = "\n".join([*lines, f"{len(problems)} operation(s) cannot be compiled"])
        emit({"model": self.model, "problems": [asdict(problem) for problem in problems]}, text, self.json)
        return 1 if problems else 0

    def _pooling(self, module: nn.Module, example: torch.Tensor) -> list[str]:
        from autorep.cli.train import pooling_text
        from autorep.replacement.moments import evaluating
        from autorep.replacement.pooling import max_pools

        with evaluating(module):
            return pooling_text([asdict(call) for call in max_pools(module, (example,))])


@dataclass(frozen=True)
class Compile:
    """Compile a trained model to a fixed-point program and split it.

    Writes OUT/program (the owner's copy, keep it), OUT/public (for everyone), OUT/party0 and OUT/party1 (one for each
    server). The program takes pixels in [0, 1]; normalisation is folded into it.
    """

    model: Annotated[str, tyro.conf.Positional]
    """Saved model (NAME.json, NAME.safetensors), run directory, name from `autorep zoo`, or with --data a trained
    network of your own: FILE.onnx, FILE.pt2 of torch.export.save, FILE.py:FUNCTION."""
    out: Path
    """Directory to write."""
    data: str | None = None
    """Data set for calibration, which for a network of your own also says how pixels are normalised; default is the
    one the model was trained on."""
    data_path: Path | None = None
    """Archive, folder or .npz file of the data set; not needed for digits, nor for a model that was calibrated when it
    was finished, as those of the zoo were."""
    images: int = 512
    """Training images to calibrate on."""
    margin: float = 4.0
    """Every layer must fit values this many times larger than calibration shows."""
    outliers: float = 0.0
    """Share of the calibration images that may be set aside because they reach much further than the others."""
    answer: Literal["class", "top-5", "logits"] = "logits"
    """What clients are told: the class alone, the best five classes in order, or all logits."""
    check: bool = False
    """Let the servers tell the client, in one private bit, whether the last features are in range: one round more.
    Always so where logits, which a client can check itself, are not given."""
    probes: int = 0
    """Test images to write with their right answers to OUT/probes.npz, for clients who want to notice a server that
    cheats (`autorep predict --probes`)."""
    samples: int = 0
    """Test images to publish with the program, for people to click on in the browser."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep import models, zoo
        from autorep.program.answer import answering
        from autorep.program.files import program_hash, save, split
        from autorep.training.compiled import compile_saved

        require(self.margin > 0, "margin", self.margin, "a factor above 0; 4 is usual")
        require(0 <= self.outliers < 1, "outliers", self.outliers, "a share from 0 up to 1")
        writable(self.out)
        saved = _own(self.model, self.data, self.data_path) if models.is_own(self.model) else zoo.load(self.model)
        name, side = self.data or saved.info["data"], saved.input_shape[-1]
        asked = first_pixels(name, self.data_path, side, self.probes, "test") if self.probes else None
        program = compile_saved(
            saved,
            calibration_pixels(saved, self.data, self.data_path, self.images),
            self.margin,
            self.outliers,
            _samples(saved, self.data, self.data_path, self.samples),
        )
        program = answering(program, self.answer, self.check)
        save(program, self.out / "program")
        split(program, self.out)
        if asked is not None:
            write_probes(program, asked, self.out / "probes.npz")
        rows = [
            (
                _short(row["layer"]),
                row["operation"],
                f"{row['largest']:.3g}",
                f"{row['limit']:.4g}",
                f"{row['bits']:.1f}",
                f"{row['factor']:.1f}×",
                row["limited_by"],
            )
            for row in program.info["headroom"]
        ]
        head = ("layer", "operation", "largest", "fits", "headroom bits", "tolerates", "limit")
        digest = program_hash(program)
        error = program.info.get("fixed_error")  # not measured with ranges that were stored
        bound = program.info.get("fixed_bound")
        text = "\n".join(
            [
                table(rows, head, "llrrrrl"),
                f"{len(program.ops)} operations, {program.relu_count:,} kept, {program.input.frac} fractional bits, "
                f"{program.info['calibration_outliers']} of {program.info['calibration_images']} images set aside"
                + ("" if error is None else f", fixed point off by {error:.2%} of a typical image's largest logit")
                + ("" if bound is None else f" (rounding explains up to {bound:.2%})"),
                f"program {digest[:16]}… in {self.out} (program/ stays with you; public/, party0/, party1/ go out)",
            ]
        )
        result = {
            "program_hash": digest,
            "operations": len(program.ops),
            "relus": program.relu_count,
            "frac": program.input.frac,
            "calibration_images": program.info["calibration_images"],
            "calibration_outliers": program.info["calibration_outliers"],
            "answer": self.answer,
            "fixed_error": error,
            "fixed_bound": bound,
            "out": str(self.out),
            "headroom": program.info["headroom"],
        }
        emit(result, text, self.json)
        return 0


def _own(name: str, data: str | None, path: Path | None) -> SavedModel:
    """A trained network of one's own, with what the data set says of its input: shape, classes, normalisation."""
    from autorep import models
    from autorep.data import load
    from autorep.training.compiled import SavedModel

    if data is None:
        raise ConfigError(
            f"{name}: a network of your own says nothing of its images; name the data set it was trained on, or one "
            "with the same classes and normalisation, with --data and --data-path"
        )
    dataset = load(data, path, models.spec(name).image_size)
    info = {
        "model": name,
        "input_shape": list(dataset.shape),
        "data": data,
        "classes": list(dataset.classes),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
        "preprocessing": dataset.preprocessing.facts(),
    }
    return SavedModel(models.create(name, len(dataset.classes)).eval(), None, info)


def write_probes(program: Program, pixels: np.ndarray, path: Path) -> None:
    """Images with answers that rounding does not decide."""
    from autorep.program.agreement import steady_answers
    from autorep.program.files import program_hash
    from autorep.service.probes import Probes

    Probes(program_hash(program), *steady_answers(program, pixels)).save(path)


@dataclass(frozen=True)
class Calibrate:
    """Measure on training images how far every layer reaches, and store it with the model.

    The model then compiles and serves without its data set. `autorep train` and `replace` do this when they finish;
    this command is for models made otherwise, and for ranges that an older release stored.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Saved models (NAME.json, NAME.safetensors), run directories, or names from `autorep zoo`."""
    data_path: Path | None = None
    """Archive, folder or .npz file of the data set they were trained on; not needed for digits."""
    images: int = 512
    """Training images to measure on."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep import zoo
        from autorep.training.compiled import ranges_of

        if not self.models:
            raise ConfigError("calibrate: name at least one saved model or run directory")
        rows = []
        for name in self.models:
            saved = zoo.load(name)
            pixels = first_pixels(saved.info["data"], self.data_path, saved.input_shape[-1], self.images, "train")
            ranges = ranges_of(saved, pixels)
            path = zoo.note(name, ranges=ranges)
            rows.append({"model": name, "images": ranges["images"], "layers": len(ranges["values"]), "file": str(path)})
        text = table([tuple(row.values()) for row in rows], ("model", "images", "layers", "stored in"), "lrrl")
        emit({"models": rows}, text, self.json)
        return 0


@dataclass(frozen=True)
class Compare:
    """Per-layer difference between two modes of a program; exit code 1 when a layer is beyond tolerance."""

    program: Annotated[Path, tyro.conf.Positional]
    """Directory that `autorep compile` wrote, or its program/ part."""
    modes: tuple[Literal["float", "fixed", "secure"], Literal["float", "fixed", "secure"]] = ("float", "fixed")
    """The two modes to compare."""
    data: str | None = None
    """Data set to take test images from; default is digits, for a program that takes those."""
    data_path: Path | None = None
    """Archive, folder or .npz file of the data set; not needed for digits."""
    images: int = 4
    """Test images to run."""
    tolerance: float = 0.02
    """Largest difference allowed, relative to the layer's largest value (at least 1)."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep.modes import compare

        program = load_program(self.program)
        pixels = first_pixels(self._data(program), self.data_path, program.input.shape[-1], self.images, "test")
        compared = compare(program, pixels, *self.modes, tolerance=self.tolerance)
        bad = compared.first_bad
        result = {
            "modes": list(self.modes),
            "tolerance": self.tolerance,
            "first_beyond_tolerance": bad.layer if bad else None,
            "layers": [{**asdict(layer), "relative": layer.relative} for layer in compared.layers],
        }
        emit(result, _comparison_text(compared), self.json)
        return 1 if bad else 0

    def _data(self, program: Program) -> str:
        if self.data is None and program.input.shape != (1, 8, 8):
            shape = "×".join(map(str, program.input.shape))
            raise ConfigError(
                f"compare: {self.program} takes {shape} images; name a data set of such with --data and --data-path"
            )
        return self.data or "digits"


@dataclass(frozen=True)
class Cost:
    """Rounds, bytes, kits and estimated latency of one private inference, before any training or run."""

    model: str | None = None
    """A network (name or FILE.py:FUNCTION): built with random weights, ReLUs kept evenly over the layers. Or a finished
    model (zoo name, saved model, run directory): counted as it is."""
    program: Path | None = None
    """Instead of a network: a compiled program's directory."""
    image_size: int | None = None
    """Side of the input images; default is the network's usual one."""
    classes: int | None = None
    """Number of classes; default is that of the network's usual data set."""
    relus: int | None = None
    """ReLUs to keep; default is all."""
    batch: int = 1
    """Images in one query."""
    comparison: Literal["dcf", "short", "bits", "auto"] | None = None
    """How kept ReLUs are compared; default is auto, which takes what suits --link (LAN) best; without a dealer bits."""
    preparation: Literal["dealer", "two-party", "ot"] = "dealer"
    """Who makes the correlated randomness: a dealer, or the two servers (by ring-LWE, or by transfers alone)."""
    link: Literal["loopback", "lan", "wan", "all"] = "all"
    """Links to estimate the latency for: LAN is 1 GB/s and 0.1 ms round trip, WAN 100 Mb/s and 40 ms."""
    measure: bool = False
    """Estimate the latency for this machine: one party rehearses the query here, in about a second, instead of the
    constants of one AVX-512 core. With a dealer only."""
    machines: float | None = None
    """Euros an hour of one machine. Tells queries a second in steady state, and euros per million of them, where
    dealer, server 0 and server 1 each have such a machine; measures as --measure does."""
    cores: int = 2
    """Cores of each of these machines, each as fast as one of this."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep.mpc.choice import choices, chosen
        from autorep.mpc.cost import cost

        require(self.batch >= 1, "batch", self.batch, "at least 1 image in a query")
        program = self._program()
        compared = choices(program, self.batch) if self.preparation == "dealer" and program.relu_count else None
        link = "lan" if self.link == "all" else self.link
        comparison = chosen(program, self.comparison, self.preparation, link)
        counted = cost(program, self.batch, comparison, self.preparation)
        pools = [layer for layer in counted.layers if layer.operation == "MaxPool"]
        without = replace(counted, layers=tuple(layer for layer in counted.layers if layer not in pools))
        result = {
            "model": self.model or str(self.program),
            **counted.to_json(),
            "max_pool_comparisons": sum(layer.comparisons for layer in pools),
            "latency_with_average_pooling": {link: without.latency(link) for link in counted.to_json()["latency"]},
        }
        result |= {} if compared is None else compared.to_json()
        if self.measure or self.machines is not None:
            result |= self._measured(program, counted, without, link)
        if self.link != "all":
            for key in {"latency", "latency_with_average_pooling", "preparing_latency"} & set(result):
                result[key] = {self.link: result[key][self.link]}
        emit(result, _cost_text(result), self.json)
        return 0

    def _measured(self, program: Program, counted: CountedCost, without: CountedCost, link: str) -> dict[str, Any]:
        """The estimates that depend on a machine, for this one."""
        from autorep import _native
        from autorep.mpc.cost import LINKS
        from autorep.mpc.machines import steady_state
        from autorep.mpc.rehearsal import LARGEST, rehearse

        if self.preparation != "dealer" or not program.parameters or counted.ring_multiplications > LARGEST:
            raise ConfigError(
                "--measure and --machines rehearse a query with a dealer's kit, of a program with its parameters and "
                f"at most {LARGEST:.0e} multiplications; leave them out for an estimate by constants"
            )
        require(self.cores >= 1, "cores", self.cores, "at least 1 core of each machine")
        _native.set_threads(1)
        _native.keep_freed_memory()
        rehearsed = rehearse(program, self.batch, counted.comparison)
        found: dict[str, Any] = {
            "measured": {**asdict(rehearsed), "simd": _native.simd()},
            "latency": {name: rehearsed.latency(counted, name) for name in LINKS},
            "latency_with_average_pooling": {name: rehearsed.latency(without, name) for name in LINKS},
        }
        if self.machines is not None:
            require(self.machines > 0, "machines", self.machines, "euros an hour of one machine, more than 0")
            found["machines"] = steady_state(counted, rehearsed, link, self.cores, self.machines).to_json()
        return found

    def _program(self) -> Program:
        if (self.model is None) == (self.program is None):
            raise ConfigError("cost: give either --model NAME or --program DIRECTORY")
        if self.program is not None:
            return load_program(self.program)
        assert self.model is not None
        if not is_network(self.model):
            if (self.image_size, self.classes, self.relus) != (None, None, None):
                raise ConfigError(
                    f"cost: {self.model} is finished: --image-size, --classes and --relus are for networks"
                )
            return program_of(self.model)
        return sketch(self.model, self.image_size, self.relus, self.classes)


def _samples(saved: SavedModel, data: str | None, path: Path | None, count: int) -> list[str]:
    """The first test images, for people to click on."""
    import numpy as np

    from autorep.preprocessing import picture_address

    if not count:
        return []
    pixels = first_pixels(data or saved.info["data"], path, saved.input_shape[-1], count, "test")
    return [picture_address(np.rint(image * 255).astype(np.uint8)) for image in pixels]


def _comparison_text(compared: Differences) -> str:
    rows = [
        (
            _short(layer.layer),
            layer.operation,
            f"{layer.difference:.2e}",
            f"{layer.largest:.3g}",
            f"{layer.relative:.2e}",
        )
        for layer in compared.layers
    ]
    first, second = compared.modes
    lines = [table(rows, ("layer", "operation", f"|{first} − {second}|", "largest", "relative"), "llrrr")]
    bad = compared.first_bad
    if bad is None:
        lines.append(f"every layer is within {compared.tolerance:g}")
    else:
        lines.append(f"first layer beyond {compared.tolerance:g}: {bad.layer} ({bad.relative:.2e})")
    return "\n".join(lines)


def _cost_text(result: dict[str, Any]) -> str:
    rows = [
        (
            _short(layer["name"]),
            layer["operation"],
            layer["rounds"],
            f"{layer['online_bytes_per_party'] / 1e3:,.1f}",
            f"{layer['offline_bytes'] / 1e3:,.1f}",
            f"{layer['ring_multiplications'] / 1e6:,.1f}",
            f"{layer['comparisons']:,}",
        )
        for layer in result["layers"]
        if layer["rounds"] or layer["ring_multiplications"]
    ]
    head = ("layer", "operation", "rounds", "online kB", "offl. kB", "10⁶ mul.", "compares")
    latency = [
        (name, f"{row['seconds']:.3f} s", f"{row['network_seconds']:.3f} s", f"{row['compute_seconds']:.3f} s")
        for name, row in result["latency"].items()
    ]
    return "\n".join(
        [
            table(rows, head, "llrrrrr"),
            "",
            f"rounds {result['rounds']}; each server sends {megabytes(result['online_bytes_per_party'])} online, "
            f"{result['ring_multiplications'] / 1e6:,.0f} million ring multiplications, "
            f"{result['comparisons']:,} comparisons",
            f"prepared ahead: {megabytes(result['offline_bytes_party0'])} for server 0, "
            f"{megabytes(result['offline_bytes_party1'])} for server 1",
            *_preparing_text(result),
            *_pooling_text(result),
            "",
            table(latency, ("estimate", "one query", "network", "compute"), "lrrr"),
            *_measured_text(result),
            *_choices_text(result),
        ]
    )


def _measured_text(result: dict[str, Any]) -> list[str]:
    """What the estimates stand on, and what machines of their own would do."""
    if "measured" not in result:
        return ["by the constants of one AVX-512 core; --measure estimates for this machine"]
    found = result["measured"]
    lines = [
        f"measured here ({found['simd']}), processor time: dealer {found['dealer_seconds']:.3f} s, prepare "
        f"{found['prepare_seconds']:.3f} s, online {found['online_seconds']:.3f} s a party and "
        f"{1e3 * found['link']['round_seconds']:.2f} ms a round"
    ]
    if "machines" in result:
        steady = result["machines"]
        lines.append(
            f"a machine each for dealer, server 0 and server 1: {steady['per_second']:.1f} queries a second (limited "
            f"by {steady['busiest']}), {steady['euros_per_million']:,.2f} euros per million"
        )
    return lines


def _choices_text(result: dict[str, Any]) -> list[str]:
    """Every comparison protocol, what a query occupies with its kits, and which is best on which link."""
    if "choices" not in result:
        return []
    links = list(result["latency"])
    rows = [
        (
            name,
            row["rounds"],
            megabytes(row["offline_bytes"]),
            *(f"{row['seconds'][link]:.3f} s{' *' if result['best'][link] == name else ''}" for link in links),
        )
        for name, row in result["choices"].items()
    ]
    head = ("comparison", "rounds", "kits", *(f"with kits, {link}" for link in links))
    counted = f"counted above: {result['comparison']}; * marks what --comparison auto takes"
    return ["", table(rows, head, "lrr" + "r" * len(links)), counted]


def _pooling_text(result: dict[str, Any]) -> list[str]:
    """What max pooling costs, where there is any, beside average pooling, which costs nothing."""
    if not result["max_pool_comparisons"]:
        return []
    pairs = [
        f"{name} {row['seconds']:.3f} s instead of {result['latency'][name]['seconds']:.3f} s"
        for name, row in result["latency_with_average_pooling"].items()
    ]
    return [
        f"{result['max_pool_comparisons']:,} of the comparisons are max pooling's, which no ReLU budget counts.",
        f"With average pooling in its place: {', '.join(pairs)}",
    ]


def _preparing_text(result: dict[str, Any]) -> list[str]:
    """What the servers send each other where no dealer prepares."""
    if "preparing_bytes" not in result:
        return []
    estimates = ", ".join(f"{row['seconds']:.2f} s on {link}" for link, row in result["preparing_latency"].items())
    return [
        f"made by the servers themselves: {megabytes(result['preparing_bytes'])} both ways, {result['kits_at_a_time']} "
        f"queries at a time in {result['preparing_flights']} messages; {megabytes(result['preparing_setup_bytes'])} "
        "once per start",
        f"making one query's kits is estimated at {estimates}",
    ]


def _short(name: str, width: int = 24) -> str:
    """The end of a long dotted path, so that tables fit a terminal."""
    return name if len(name) <= width else "…" + name[1 - width :]
