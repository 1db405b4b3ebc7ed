"""The worked examples run as written and come out the same in all three modes."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("name", ["vgg_private", "mobilenet_private"])
def test_example_runs_privately_with_the_answers_of_float(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES)
    rows = importlib.import_module(name).main(epochs=3, images=40)
    for module in (name, "digits_task"):
        sys.modules.pop(module, None)
    assert rows["float"]["accuracy"] >= 80
    for mode in ("fixed", "secure"):
        assert rows[mode]["same"] >= 97.5
        assert 0 < rows[mode]["difference"] < 0.1
    assert "ReLU" in capsys.readouterr().out
