"""Commands around the recorded results: `autorep bench all`, `zoo`, `tables`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from autorep.bench.record import RESULTS, record
from autorep.cli.output import emit
from autorep.errors import ConfigError
from autorep.report import tables
from autorep.report.collect import collect
from autorep.report.documents import MARKED, TABLES, fill
from autorep.settings import warn

if TYPE_CHECKING:
    from autorep.data import Dataset
    from autorep.training import SavedModel

DOCUMENTS = ("README.md", "docs/results.md", "docs/kernels.md", "bench/results/training/README.md")


@dataclass(frozen=True)
class All:
    """Run the benchmarks one after the other, record each, and print the headline tables."""

    scope: Literal["quick", "full"] = "quick"
    """quick: ResNet-18 at four budgets, three links, CrypTen, kernels (minutes). full: everything (an hour or so)."""
    only: str = ""
    """Only the results whose name contains this."""
    results: Path = RESULTS
    """Folder to write the results to."""

    def run(self) -> int:
        from autorep.bench.everything import measure_all

        failed = []
        for name, result in measure_all(self.scope, self.only):
            record(name, result, folder=self.results)
            if not result.get("agrees", True) or not all(c["holds"] for c in result.get("checks", ())):
                failed.append(name)
        sources = collect([self.results])
        for name in ("headline", "networks", "wan"):
            table = TABLES[name](sources)
            print(f"\n{name}\n\n{table.text()}" if table else f"\n{name}: not measured yet")
        for name in failed:
            warn(f"{name}: a check failed; see {self.results / name}.json")
        return 1 if failed else 0


@dataclass(frozen=True)
class Zoo:
    """Accuracy of zoo models in float, in fixed point and privately on real test images, image by image.

    The private runs are the real protocol between two parties on this machine. Predictions may differ from fixed
    point only where the two best classes are nearer than the rounding error; such ties are counted.
    """

    models: tuple[str, ...] = ()
    """Names from `autorep zoo`, or saved models; default: the whole zoo."""
    cifar10: Path | None = None
    """Archive, folder or .npz file of CIFAR-10."""
    cifar100: Path | None = None
    """Archive, folder or .npz file of CIFAR-100."""
    images: int = 500
    """Test images of each model."""
    batch: int = 20
    """Images in one private query."""
    preparation: Literal["dealer", "two-party", "ot"] = "dealer"
    """Who makes the correlated randomness: a dealer, or the two servers."""
    record: bool = False
    """Write bench/results/zoo.json, and the accuracies into the model's own JSON file; without a dealer
    bench/results/zoo-two-party.json alone."""
    json: str | None = None
    """Write the result as JSON to a file, or to standard output with `-`."""

    def run(self) -> int:
        from autorep import zoo
        from autorep.bench.private_accuracy import private_accuracy

        results = {}
        for name in self.models or zoo.names():
            saved = zoo.load(name)
            dataset = self._dataset(saved)
            results[name] = private_accuracy(
                saved, dataset, self.images, self.batch, progress=self.json != "-", preparation=self.preparation
            )
            if self.record and self.preparation == "dealer" and name in zoo.names():
                kept = ("images", "accuracy", "same_as_fixed", "ties", "rounding_error")
                zoo.note(name, private={key: results[name][key] for key in kept})
        if self.record:
            file = "zoo" if self.preparation == "dealer" else f"zoo-{self.preparation}"
            path = RESULTS / f"{file}.json"
            before = collect([path]).records[0].result["models"] if path.exists() else {}
            record(file, {"models": before | results})
        emit({"models": results}, tables.zoo({"models": results}).text(), self.json)
        return 0 if all(result["holds"] for result in results.values()) else 1

    def _dataset(self, saved: SavedModel) -> Dataset:
        from autorep import data

        name = saved.info["data"]
        path = {"cifar10": self.cifar10, "cifar100": self.cifar100}.get(name)
        if path is None and name != "digits":
            raise ConfigError(f"this model was trained on {name}: give its files with --{name} PATH")
        return data.load(name, path)


@dataclass(frozen=True)
class Tables:
    """Fill the marked tables of Markdown files from the recorded results."""

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = tuple(map(Path, DOCUMENTS))
    """Markdown files with `<!-- table:NAME -->` markers; default: every document of a source checkout that has them."""
    results: Path = RESULTS
    """Folder of recorded results."""
    check: bool = False
    """Change nothing; fail when the tables are not those of the results."""

    def run(self) -> int:
        sources, stale = collect([self.results]), []
        for file in self.files:
            try:
                text = file.read_text(encoding="utf-8")
            except FileNotFoundError:
                raise ConfigError(f"{file}: no such file; run from the top of a source checkout") from None
            filled = fill(text, sources)
            if filled != text:
                stale.append(file)
                if not self.check:
                    file.write_text(filled, encoding="utf-8")
            state = "as recorded" if filled == text else "not as recorded" if self.check else "written"
            print(f"{file}: {len(MARKED.findall(text))} table(s), {state}")
        return 1 if stale and self.check else 0
