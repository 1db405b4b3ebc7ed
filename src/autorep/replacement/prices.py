"""What activations cost in private inference, in seconds on one link, and which to keep for so many seconds.

A layer is a mixture of kept ReLUs and quadratics, or it is a straight line, which needs no opening at all where the
convolutions around it become one. On a fast link comparisons are dear and rounds cheap, on a slow one the other way
round, so the best network of so many seconds is not the one of fewest ReLUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from autorep.errors import BudgetError


@dataclass(frozen=True)
class Prices:
    """Of one network on one link.

    Attributes:
        target: seconds that one inference may take.
        base: seconds with every activation a quadratic.
        relu: of every site, what each kept ReLU adds; below 0 where a quadratic sends more than a comparison costs.
        line: of every site, what is saved where the layer is a line instead of quadratics; below 0 where it costs more.
        exact: seconds of the network that keeps so many ReLUs by site, with these sites as lines.
    """

    target: float
    base: float
    relu: Mapping[str, float]
    line: Mapping[str, float]
    exact: Callable[[Mapping[str, int], Collection[str]], float]


@dataclass(frozen=True)
class Plan:
    """Layers that become lines, kept ReLUs by site, seconds by the prices, and the damage expected of it."""

    lines: tuple[str, ...]
    kept: Mapping[str, np.ndarray]
    seconds: float
    damage: float

    @property
    def counts(self) -> dict[str, int]:
        return {name: int(flags.sum()) for name, flags in self.kept.items()}

    @property
    def relus(self) -> int:
        return sum(self.counts.values())


def plan(prices: Prices, quadratic: Mapping[str, Tensor], line: Mapping[str, Tensor]) -> Plan:
    """The least damage for at most `prices.target` seconds, checked by the exact count.

    Args:
        quadratic, line: damage of replacing each element by its quadratic, or by its line, by site.
    """
    flat = {name: values.detach().double().cpu().numpy() for name, values in quadratic.items()}
    whole = {name: float(values.detach().double().sum()) for name, values in line.items()}
    target = prices.target
    for _ in range(4):
        found = _cheapest(prices, flat, whole, target)
        excess = prices.exact(found.counts, found.lines) - prices.target
        if excess <= 0:
            return found
        target -= 1.05 * excess + 1e-6 * prices.target
    return _cheapest(prices, flat, whole, target)


def _cheapest(prices: Prices, damage: Mapping[str, np.ndarray], lines: Mapping[str, float], target: float) -> Plan:
    """Lines are taken in the order of damage per second saved; of all such beginnings, the one of least damage."""
    worth = [name for name in damage if prices.line[name] > 0]
    order = sorted(worth, key=lambda name: (lines[name] / prices.line[name], name))
    options = [_with_lines(prices, damage, lines, order[:count], target) for count in range(len(order) + 1)]
    fitting = [option for option in options if option.seconds <= target]
    if not fitting:
        shortest = min(options, key=lambda option: option.seconds)
        least = prices.exact(shortest.counts, shortest.lines)
        raise BudgetError(
            f"latency = {prices.target:g} s: this network takes {least:.3g} s or more on this link, whatever its"
            " activations become; give more seconds, a faster link, or a network of fewer layers"
        )
    return min(fitting, key=lambda option: (option.damage, len(option.lines)))


def _with_lines(
    prices: Prices, damage: Mapping[str, np.ndarray], lines: Mapping[str, float], chosen: Collection[str], target: float
) -> Plan:
    """These layers as lines; in the others every ReLU that is free, then those of most damage avoided per second."""
    seconds = prices.base - sum(prices.line[name] for name in chosen)
    total = sum(lines[name] for name in chosen)
    kept = {name: np.zeros(values.shape, bool) for name, values in damage.items()}
    priced = []
    for name, values in damage.items():
        if name in chosen:
            continue
        if prices.relu[name] <= 0:
            kept[name][...] = True
            seconds += prices.relu[name] * values.size
        else:
            priced.append(name)
            total += float(values.sum())
    if priced and seconds < target:
        ratios = np.concatenate([damage[name].ravel() / prices.relu[name] for name in priced])
        costs = np.concatenate([np.full(damage[name].size, prices.relu[name]) for name in priced])
        best = np.argsort(-ratios, kind="stable")
        spent = np.cumsum(costs[best])
        affordable = best[: int(np.searchsorted(spent, target - seconds, side="right"))]
        flags = np.zeros(len(ratios), bool)
        flags[affordable] = True
        seconds += float(costs[affordable].sum())
        for name, part in zip(priced, np.split(flags, np.cumsum([damage[n].size for n in priced])[:-1])):
            kept[name] = part.reshape(damage[name].shape)
            total -= float(damage[name][kept[name]].sum())
    return Plan(tuple(chosen), kept, seconds, total)
