"""Seconds instead of ReLUs: the plan against every choice tried, prices against the cost of whole programs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autorep import models
from autorep.compiler.compile import sketch_program
from autorep.errors import BudgetError, ConfigError
from autorep.mpc.cost import cost
from autorep.replacement import replace_activations_
from autorep.replacement.prices import Plan, Prices, plan
from autorep.training.prices import prices


def additive(target: float, base: float, relu: dict[str, float], line: dict[str, float]) -> Prices:
    def exact(counts, lines):
        return base + sum(relu[n] * c for n, c in counts.items() if n not in lines) - sum(line[n] for n in lines)

    return Prices(target, base, relu, line, exact)


def damage_of(found: Plan, quadratic, line) -> float:
    replaced = sum(
        float(quadratic[n][~torch.from_numpy(found.kept[n])].sum()) for n in quadratic if n not in found.lines
    )
    return replaced + sum(float(line[n].sum()) for n in found.lines)


@given(st.integers(0, 10_000), st.floats(0.1, 1.0))
@settings(max_examples=40, deadline=None)
def test_a_plan_is_within_its_seconds_and_no_worse_than_any_other_with_its_lines(seed, share):
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c"]
    quadratic = {n: torch.from_numpy(rng.uniform(0, 1, 3)) for n in names}
    line = {n: quadratic[n] * 3 for n in names}
    relu = {n: 1.0 if n != "c" else -0.1 for n in names}  # alike in a and b, so that the best first is the best
    saved = {"a": 1.0, "b": 0.5, "c": -0.2}
    most = additive(0, 5.0, relu, saved).exact(dict.fromkeys(names, 3), ())
    chosen = additive(3.3 + share * (most - 3.3), 5.0, relu, saved)
    found = plan(chosen, quadratic, line)
    counts = {n: int(found.kept[n].sum()) for n in names}
    assert chosen.exact(counts, found.lines) <= chosen.target + 1e-9
    assert found.seconds == pytest.approx(chosen.exact(counts, found.lines))
    assert found.damage == pytest.approx(damage_of(found, quadratic, line))
    assert "c" not in found.lines  # a line there would cost more
    assert found.kept["c"].all()  # and its ReLUs cost less than nothing
    free = [n for n in ("a", "b") if n not in found.lines]
    values = np.concatenate([quadratic[n].numpy() for n in free]) if free else np.empty(0)
    best = sum(sorted(values)[len(values) - sum(counts[n] for n in free) :])
    assert found.damage == pytest.approx(values.sum() - best + sum(float(line[n].sum()) for n in found.lines))
    for lines in itertools.chain([()], [found.lines]):
        affordable = math.floor(chosen.target - (5.0 - 0.3 - sum(saved[n] for n in lines)) - 1e-6)
        if affordable < 0:
            continue
        rest = np.concatenate([quadratic[n].numpy() for n in ("a", "b") if n not in lines] or [np.empty(0)])
        other = sum(sorted(rest)[: max(len(rest) - affordable, 0)]) + sum(float(line[n].sum()) for n in lines)
        assert found.damage <= other + 1e-9


def test_too_few_seconds_are_refused_with_the_least():
    ones = {"a": torch.ones(3)}
    with pytest.raises(BudgetError, match="takes 4 s or more"):
        plan(additive(3.0, 5.0, {"a": 1.0}, {"a": 1.0}), ones, ones)
    with pytest.raises(BudgetError, match="takes 4.5 s or more"):  # as it is counted, not as single prices add up
        plan(Prices(4.2, 5.0, {"a": 1.0}, {"a": 1.0}, lambda counts, lines: 4.5), ones, ones)


def test_prices_are_those_of_whole_programs_and_follow_the_link():
    model, example = models.create("digits_net").eval(), torch.zeros(2, 1, 8, 8)
    handle = replace_activations_(model, example)
    slow, fast = (prices(model, handle, example, 1.0, link) for link in ("wan", "loopback"))
    inside = "layer1.0.relu1"
    assert slow.line[inside] > 0.04 > fast.line[inside]  # two rounds of 20 ms each
    assert slow.line[inside] > slow.line["layer1.0.relu2"]  # after a sum there is nothing to merge
    assert fast.relu[inside] > 0
    for site in handle.sites.values():
        site.mask.zero_()
    handle.sites[inside].straighten_()
    alone = cost(sketch_program(model, example)).latency("wan")["seconds"]
    assert slow.base - slow.line[inside] == pytest.approx(alone, rel=1e-3)
    nothing = dict.fromkeys(handle.sites, 0)
    assert slow.exact(nothing, [inside]) == pytest.approx(alone, rel=1e-3)
    with pytest.raises(ConfigError, match="--latency 0.5"):
        prices(model, handle, example, 0.0, "wan")
