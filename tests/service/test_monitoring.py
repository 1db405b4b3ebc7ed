"""Alert rules and dashboard: they load, and every figure they ask for is one that servers or dealer really give."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from autorep.service.dealer_watch import DealerMetrics
from autorep.service.metrics import Metrics

FOLDER = Path(__file__).parents[2] / "docs" / "monitoring"
NAME = re.compile(r"\b(?:autorep|process)_[a-z0-9_]+\b")


def given_names() -> set[str]:
    """All sample names of both registries, before anything is counted."""
    names = set()
    for registry in (Metrics().registry, DealerMetrics().registry):
        for family in registry.collect():
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
            names |= {family.name + suffix for suffix in suffixes} | {sample.name for sample in family.samples}
    return names


def test_alerts_load_and_ask_for_figures_that_exist() -> None:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert set(NAME.findall(rule["expr"])) <= given_names(), rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["action"]


def test_dashboard_loads_and_asks_for_figures_that_exist() -> None:
    panels = json.loads((FOLDER / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    asked = {name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])}
    assert asked <= given_names(), asked - given_names()


def test_prometheus_itself_accepts_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (apt-get install prometheus)")
    subprocess.run([promtool, "check", "rules", str(FOLDER / "alerts.yml")], check=True)
