"""The table of mutants fits the sources; a few mutants are run here, all of them by `make mutants`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants.run import outcome
from tests.mutants.table import MUTANTS, SOURCES

ROOT = Path(__file__).parents[2]
SAMPLE = ("p0-dealt-share-zero", "kept-mask-is-input-mask", "used-kit-put-again")


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 40


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_fits_the_sources(name: str) -> None:
    mutant = MUTANTS[name]
    for file in {change.file for change in mutant.changes}:
        source = (SOURCES / file).read_text(encoding="utf-8")
        for change in (change for change in mutant.changes if change.file == file):
            source = change.apply(source)  # raises when the place is gone
        compile(source, file, "exec")
    for test in mutant.tests:
        path, _, function = test.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or re.search(rf"^def {function.partition('[')[0]}\(", text, re.M), test


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_caught(name: str) -> None:
    assert outcome(MUTANTS[name]) == "caught"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in SAMPLE])
def test_every_mutant_is_caught(name: str) -> None:
    assert outcome(MUTANTS[name]) == "caught"
