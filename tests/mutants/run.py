"""Run mutants and say which survive: `python -m tests.mutants.run [--record] [NAME ...]` (all of them by default).

A mutant is caught when one of the tests named for it fails by an assertion, or because an error it expects is missing.
With --record the outcomes go to bench/results/mutants.json, each with the commit it was seen at.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autorep.bench.record import RESULTS, record
from autorep.provenance import commit
from autorep.report.collect import collect
from tests.mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
_BY_ASSERTION = re.compile(r"^E\s+(assert |AssertionError|Failed: DID NOT RAISE|Regex pattern did not match)", re.M)


def run_tests(tests: tuple[str, ...], mutant: str = "") -> tuple[int, str]:
    """Exit code and output of a fresh pytest."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=short", "-p", "tests.mutants.hook", *tests]
    environment = {**os.environ, "AUTOREP_MUTANT": mutant, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def outcome(mutant: Mutant) -> str:
    """`caught`, or why not."""
    code, output = run_tests(mutant.tests, mutant.name)
    if code == 0:
        return "SURVIVED"
    if code != 1:
        return f"BROKEN: the tests did not run (exit {code}): {output[-300:]}"
    if _BY_ASSERTION.search(output):
        return "caught"
    return f"BROKEN: failed by accident: {output[-400:]}"


def keep(outcomes: dict[str, str]) -> None:
    """Put outcomes into the record; those of mutants that are gone leave it."""
    path = RESULTS / "mutants.json"
    known = collect([path]).records[0].result["mutants"] if path.exists() else {}
    known |= {name: {"outcome": result, "commit": commit()} for name, result in outcomes.items()}
    mutants = {name: known[name] for name in MUTANTS if name in known}
    caught = sum(entry["outcome"] == "caught" for entry in mutants.values())
    result = {"caught": caught, "of": len(MUTANTS), "mutants": mutants}
    record("mutants", result, "python -m tests.mutants.run --record")


def main(arguments: list[str]) -> int:
    names = [name for name in arguments if name != "--record"]
    chosen = [MUTANTS[name] for name in names] or list(MUTANTS.values())
    every = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    code, output = run_tests(every)
    if code:
        print(f"the tests fail without any mutation:\n{output[-2000:]}")
        return 2
    started = time.perf_counter()
    outcomes: dict[str, str] = {}
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        for mutant, result in zip(chosen, pool.map(outcome, chosen)):
            print(f"{mutant.name:<36} {result}", flush=True)
            outcomes[mutant.name] = result
    if "--record" in arguments:
        keep(outcomes)
    lost = sum(result != "caught" for result in outcomes.values())
    print(f"{len(chosen) - lost} of {len(chosen)} mutants caught in {time.perf_counter() - started:.0f} s")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
