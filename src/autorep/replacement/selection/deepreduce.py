"""deepreduce: whole stages are culled, then every second layer of those that stay is thinned (Jha et al., 2021).

A stage's criticality is the accuracy of the network in which it alone keeps its ReLUs, over its ReLUs to the power
0.07. The least critical stages go first. Of all networks on that path, thinned or not, the one with most ReLUs within
the budget is taken, so the count may end below it. DeepReDuce's third step, reshaping, makes another network: options
`width` and `stem_stride` of the residual networks, trained as a baseline first.

The original trains every stage-alone network before it compares them; here they are compared as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from autorep.errors import BudgetError
from autorep.replacement.selection.base import Context
from autorep.replacement.selection.layers import Layers, keep_layers_, sizes
from autorep.replacement.selection.scores import accuracy

POWER = 0.07  # of the ReLUs that a stage's accuracy is divided by


class DeepReduce(Layers):
    """Layers are chosen once, from the network as it is."""

    def begin_(self, ctx: Context) -> None:
        layers = sizes(ctx)
        criticality = {}
        for stage, names in stages(list(layers)).items():
            keep_layers_(ctx, names)
            criticality[stage] = accuracy(ctx) / sum(layers[name] for name in names) ** POWER
        order = sorted(criticality, key=lambda stage: (criticality[stage], stage))
        kept = layers_within(layers, order, ctx.budget)
        ctx.handle.start_from_({name: ctx.handle.sites[name].mask.double() for name in layers})
        keep_layers_(ctx, kept)


def stages(names: Sequence[str]) -> dict[str, list[str]]:
    """Sites by stage, the first part of their name (layer1, layer2, …); a stem's ReLU is a stage of its own."""
    return {stage: list(group) for stage, group in groupby(names, key=lambda name: name.split(".")[0])}


def thinned(names: Sequence[str]) -> list[str]:
    """Every second layer of a stage: of a basic block, the ReLU between its convolutions."""
    return list(names[::2])


def layers_within(layers: Mapping[str, int], order: Sequence[str], budget: int) -> list[str]:
    """The layers that keep their ReLUs: stages culled in this order, thinned or not, most ReLUs within the budget."""
    groups = stages(list(layers))
    options: list[list[str]] = []
    for culled in range(len(order)):
        left = [stage for stage in groups if stage in order[culled:]]
        options.append([name for stage in left for name in groups[stage]])
        options.append([name for stage in left for name in thinned(groups[stage])])
    counts = [sum(layers[name] for name in option) for option in options]
    fitting = [(count, -i) for i, count in enumerate(counts) if count <= budget]
    if not fitting:
        raise BudgetError(
            f"deepreduce keeps whole layers: the smallest network on its path has {min(counts):,} ReLUs and the budget"
            f" is {budget:,}; reshape the network (a smaller width, a stem stride), or choose another method"
        )
    return options[-max(fitting)[1]]
