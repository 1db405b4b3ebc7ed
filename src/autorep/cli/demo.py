"""`autorep demo`: the whole chain on the embedded digits, as one function to read from top to bottom."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorep.cli.output import emit, table
from autorep.errors import ConfigError

if TYPE_CHECKING:
    from autorep.modes import Program
    from autorep.service.answers import Prediction

STEPS = 7
WITHOUT_DEALER = 12  # images answered once more by two servers that need no dealer
_WRITTEN = ("baseline", "replaced", "program", "figures", "report.html", "demo.json")


@dataclass(frozen=True)
class Demo:
    """Train a small network on embedded digits, replace its ReLUs, and classify the test images privately.

    Dealer, two servers and a client run as separate processes over TLS on this machine. Ends with a table and an HTML
    report; exit code 0 only if private and fixed-point predictions agree wherever rounding cannot decide.
    """

    out: Path = Path("demo-output")
    """Directory for models, program and report; what an earlier demo left there is replaced."""
    budget: float = 0.05
    """ReLUs to keep: a whole number, or a share of all when below 1."""
    images: int = 360
    """Test images to classify; there are 360."""
    epochs: int = 30
    """Passes over the training images for the baseline, and again for the replacement."""
    seed: int = 0
    """Of training; everything secret is random in any case."""
    json: str | None = None
    """Also write the result as JSON to this file; - prints JSON only."""

    def __post_init__(self) -> None:
        if not 1 <= self.images <= 360:
            raise ConfigError(f"images = {self.images}; the embedded digits have 360 test images: choose 1 to 360")

    def run(self) -> int:
        with contextlib.redirect_stdout(sys.stderr):  # progress is for people; standard output is for the result
            result = demonstrate(self)
        emit(result, summary(result), self.json)
        return 0 if result["agreement"]["holds"] else 1


def demonstrate(settings: Demo) -> dict[str, Any]:
    """Train → replace → compile → prepare and start → classify → check → report."""
    import numpy as np
    import torch

    from autorep import data, training
    from autorep.bench.pi import measure
    from autorep.bench.setting import Setting
    from autorep.cli.demo_page import WORDS, write_demo_page
    from autorep.preprocessing import picture_address
    from autorep.program.agreement import agreement, leads, rounding_error
    from autorep.program.files import save
    from autorep.service.local import LocalDeployment
    from autorep.training.compiled import compile_saved

    started, out = time.perf_counter(), settings.out
    _clear(out)
    common: dict[str, Any] = {"epochs": settings.epochs, "seed": settings.seed, "batch_size": 64, "threads": 1}
    dataset = data.load("digits")

    _say(1, "train an all-ReLU residual network on 1,437 digits")
    baseline = training.TrainSettings(out=out / "baseline", learning_rate=0.1, **common)
    training.train_baseline(baseline)

    _say(2, f"replace ReLUs down to {settings.budget:g} and fine-tune")
    weights = out / "baseline" / "model.safetensors"
    trained = training.replace(
        training.ReplaceSettings(out=out / "replaced", weights=weights, budget=settings.budget, **common)
    )
    saved = training.load_model(out / "replaced")

    _say(3, "compile to a fixed-point program and split it for two servers")
    pixels = dataset.train.take(torch.arange(512)).numpy() / 255.0
    samples = [picture_address(levels) for levels in dataset.test.take(torch.arange(10)).numpy()]
    program = compile_saved(saved, pixels, samples=samples)
    save(program, out / "program")

    index = torch.arange(settings.images)
    images, labels = dataset.test.take(index).numpy() / 255.0, dataset.test.labels[index].numpy()
    fixed = program.run(images, mode="fixed")
    error = rounding_error(program, images)

    _say(4, f"prepare {settings.images} inferences; start dealer and two servers (separate processes, TLS)")
    deployment = LocalDeployment(program, prepare=settings.images, lanes=1)
    with contextlib.ExitStack() as stack:
        with _progress_of(deployment.folder, settings.images):
            stack.enter_context(deployment)  # returns when both servers are ready
        _say(5, f"classify {settings.images} test images privately")
        with deployment.client(concurrency=1) as client:
            answers = client.predict(images, progress=True)
    private = np.stack([answer.logits for answer in answers if answer.logits is not None])

    _say(6, "compare private with fixed point, and time every layer")
    checked = agreement(fixed, private, error)
    layers = measure(program, Setting(repeats=14))["layers"]
    without_dealer = _without_dealer(program, images[:WITHOUT_DEALER], fixed[:WITHOUT_DEALER])

    _say(7, "write the report")
    part = data.Subset(dataset.test, index)
    teacher = training.load_model(out / "baseline").model
    result: dict[str, Any] = {
        "images": settings.images,
        "relus": trained["relus"],
        "relus_total": trained["relus_total"],
        "accuracy": {
            "baseline": training.accuracy(teacher, part, dataset),
            "replaced": training.accuracy(saved.model, part, dataset),
            "fixed": _percent(fixed, labels),
            "private": _percent(private, labels),
        },
        "per_image": _per_image(answers, program),
        "agreement": {**asdict(checked), "holds": checked.holds},
        "without_dealer": without_dealer,
        "layers": [
            {"name": row["name"], "kind": WORDS.get(row["operation"], "other"), "seconds": row["seconds"]}
            for row in layers
        ],
        "seconds": round(time.perf_counter() - started, 1),
        "report": str(out / "report.html"),
    }
    assert saved.replacement is not None  # the demo has just replaced this model
    masks = {name: site.mask.numpy().astype(bool) for name, site in saved.replacement.sites.items()}
    write_demo_page(out / "report.html", result, masks, leads(fixed, private) - leads(fixed, fixed))
    return result


def summary(result: dict[str, Any]) -> str:
    """What the demo prints at the end."""
    accuracy, costs, checked = result["accuracy"], result["per_image"], result["agreement"]
    rows = [
        ("accuracy, all-ReLU baseline", f"{accuracy['baseline']:.2f} %"),
        ("accuracy, after replacement", f"{accuracy['replaced']:.2f} %"),
        ("accuracy, fixed point", f"{accuracy['fixed']:.2f} %"),
        ("accuracy, private", f"{accuracy['private']:.2f} %"),
        ("ReLUs kept", f"{result['relus']:,} of {result['relus_total']:,}"),
        ("online, per image", f"{costs['online_ms']:.1f} ms"),
        ("sent per server online, per image", f"{costs['online_bytes_per_party']:,} bytes"),
        ("rounds", f"{costs['rounds']}"),
        ("prepared ahead (both servers), per image", f"{costs['offline_bytes']:,} bytes"),
    ]
    if alone := result.get("without_dealer"):
        rows.append(("same predictions without a dealer", f"{alone['equal']} of {alone['images']}"))
    verdict = (
        f"private and fixed-point predictions agree on {checked['equal']} of {checked['images']} images, and on "
        f"{checked['equal_clear']} of the {checked['clear']} where rounding (up to {checked['error']:.4f} between two "
        f"classes) cannot decide: {'as it must be' if checked['holds'] else 'THIS IS WRONG'}"
    )
    title = f"{result['images']} test images, {result['seconds']:.0f} s in all"
    return "\n".join([table(rows, (title, ""), "lr"), verdict, f"report: {result['report']}"])


def _without_dealer(program: Program, images: Any, fixed: Any) -> dict[str, int]:
    """The first images once more, by two parties that make their own correlated randomness."""
    from autorep.mpc.local import LocalPair

    with LocalPair(program, preparation="two-party") as pair:
        logits = pair.run(images)
    return {"images": len(images), "equal": int((logits.argmax(1) == fixed.argmax(1)).sum())}


def _per_image(answers: list[Prediction], program: Program) -> dict[str, Any]:
    """Medians over the images; bytes and rounds are the same for every image."""
    return {
        "online_ms": 1000 * statistics.median(answer.online_seconds for answer in answers),
        "client_ms": 1000 * statistics.median(answer.seconds for answer in answers),
        "online_bytes_per_party": answers[0].sent_bytes,
        "rounds": answers[0].rounds,
        "offline_bytes": answers[0].offline_bytes,
        "operations": len(program.ops),
    }


def _percent(logits: Any, labels: Any) -> float:
    return 100.0 * float((logits.argmax(axis=1) == labels).mean())


def _say(step: int, text: str) -> None:
    print(f"[{step}/{STEPS}] {text}", flush=True)


@contextlib.contextmanager
def _progress_of(folder: Path, count: int) -> Iterator[None]:
    """A bar that follows the kits arriving in the servers' stores."""
    from tqdm import tqdm

    from autorep.service.workers import meanwhile

    with tqdm(total=count, desc="correlated randomness", unit="inference") as bar:

        def follow() -> None:
            stored = [sum(1 for _ in folder.glob(f"store{party}/*/ready/*")) for party in (0, 1)]
            bar.update(min(*stored, count) - bar.n)

        with meanwhile(follow, 0.2):
            yield
        bar.update(count - bar.n)


def _clear(out: Path) -> None:
    """Remove what an earlier demo wrote, and nothing else."""
    out.mkdir(parents=True, exist_ok=True)
    for name in _WRITTEN:
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
