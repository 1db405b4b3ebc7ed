"""`autorep report`: one self-contained HTML file from any set of runs and recorded benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from autorep.cli.output import emit
from autorep.errors import ConfigError


@dataclass(frozen=True)
class Report:
    """Draw everything that the given runs and benchmark results hold into one self-contained HTML file.

    Figures are also written beside it, under figures/, as SVG and PNG.
    """

    sources: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Run directories, recorded results (JSON), or directories that hold such; default: bench/results and runs."""
    out: Path = Path("report/report.html")
    """The HTML file to write."""
    json: str | None = None
    """Also write what was used and written as JSON to this file; - prints JSON only."""

    def run(self) -> int:
        from autorep.report.build import build

        sources = self.sources or tuple(path for path in (Path("bench/results"), Path("runs")) if path.is_dir())
        if not sources:
            raise ConfigError("report: neither bench/results nor runs is here; name run directories or result files")
        result = build(sources, self.out)
        lines = [f"{len(result['runs'])} training runs and finished models, {len(result['results'])} recorded results"]
        lines += [f"  {name}" for name in result["sections"]]
        emit(result, "\n".join([*lines, f"report: {self.out}"]), self.json)
        return 0
