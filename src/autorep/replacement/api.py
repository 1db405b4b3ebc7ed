"""replace_activations_: put the method into a model, for use inside anyone's own training loop.

replacement = replace_activations_(model, example_input, budget=12_900)
replacement.begin(model, batches, total_steps)
optimizer = torch.optim.SGD(replacement.weights(), lr=0.02, momentum=0.9)
for x, y in loader:
    loss = task_loss(model(x), y) + replacement.loss()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    replacement.step()
replacement.finalize_()
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from autorep.errors import ConfigError, DataError, TraceError
from autorep.replacement.activation import MaskedActivation
from autorep.replacement.budget import check_budget
from autorep.replacement.chance import refusing_chance
from autorep.replacement.handle import Replacement
from autorep.replacement.herpn import HermiteNorm
from autorep.replacement.indicator import SURROGATES
from autorep.replacement.kept import module_kind
from autorep.replacement.moments import as_tensor, evaluating, images_of
from autorep.replacement.pooling import max_pools
from autorep.replacement.prelu import open_prelus_
from autorep.replacement.replaced import SETTINGS_ATTRIBUTE, ReplacementSettings
from autorep.replacement.rewrite import build_forwards, install_
from autorep.replacement.sites import REPLACEABLE, SiteMap, find_sites, separate_shared_activations_

GRANULARITIES = ("channel", "layer")
POLYNOMIALS: dict[str, type[MaskedActivation]] = {"free": MaskedActivation, "herpn": HermiteNorm}

Select = Callable[[str], bool] | Collection[str]


def replace_activations_(
    model: nn.Module,
    example_input: Any,
    budget: float | None = None,
    *,
    kinds: Sequence[str] = ("relu", "relu6"),
    degree: int = 2,
    granularity: str = "channel",
    hysteresis: float = 0.003,
    surrogate: str = "softplus",
    floor: int = 0,
    select: Select | None = None,
    polynomial: str = "free",
) -> Replacement:
    """Put a MaskedActivation at every activation call site of the model, in place; all masks start at 1.

    Args:
        model: any module torch.fx can follow, or one with ActivationSite modules placed by hand.
        example_input: one batch, as a tensor, an array, or what a loader gives (labels are not looked at); several
            arguments as a tuple. The masks belong to its image size.
        budget: ReLUs to keep in the end, a count or a share below 1; may be set later.
        kinds: activations to replace, by their names in `autorep.activations`, or "prelu"; kept elements stay what
            they are, but with "silu" SiLU sites become ReLU sites.
        degree: of the polynomials. Two-party inference runs degree 1 and 2.
        granularity: one polynomial per "channel", or per "layer" for comparison.
        hysteresis: half-width of the band around 0 in which a mask does not flip.
        surrogate: reading of the straight-through gradient, "softplus" or "sigmoid" (see `indicator`).
        floor: ReLUs that every layer keeps at least.
        select: site names to replace, or a function that says so; all others keep their activation. A module that
            torch.fx cannot follow is left alone when it refuses "<module path>.relu".
        polynomial: "free" has coefficients of its own, "herpn" is normalised by batch statistics (see `herpn`).
    """
    _check_settings(kinds, degree, granularity, hysteresis, surrogate, floor)
    if polynomial not in POLYNOMIALS or (polynomial != "free" and (degree, granularity) != (2, "channel")):
        raise ConfigError(
            f"polynomial {polynomial!r} of degree {degree} per {granularity}; valid: free, or herpn of degree 2 per"
            " channel"
        )
    if hasattr(model, SETTINGS_ATTRIBUTE):
        raise ConfigError("this model's activations are already replaced; use autorep.replacement.attach(model)")
    example_input = _example(model, example_input)
    chooses = _as_function(select)
    trial, found = _explore(model, example_input, kinds, chooses)
    chosen = [site for site in found.sites if chooses is None or chooses(site.name)]
    if not chosen:
        seen = ", ".join(site.name for site in found.sites) or "none at all"
        raise TraceError(
            f"no activation of kind {', '.join(kinds)} to replace; call sites found: {seen}."
            f"{_other_kinds(model, kinds)}"
        )
    if budget is not None:
        budget = check_budget(budget, [site.relus for site in chosen], floor)
    modules = {
        site.name: POLYNOMIALS[polynomial](
            site.shape,
            activation=site.kind,
            arguments=site.arguments,
            degree=degree,
            granularity=granularity,
            surrogate=surrogate,
            device=example_input[0].device,
        )
        for site in chosen
    }
    probes = _probes(example_input)
    with torch.no_grad():
        pooled = sum(call.comparisons for call in max_pools(trial, _copies(probes[0])))
        with (
            evaluating(model),
            refusing_chance(model),
        ):  # the model itself: hooks and closures of its copy may refer to it
            expected = [model(*_copies(probe)) for probe in probes]
        forwards = build_forwards(trial, found, modules, kinds)
        install_(trial, modules, forwards)
        for probe, before in zip(probes, expected):
            _check_same(before, trial(*_copies(probe)), lambda: _first_difference(model, trial, probe))  # noqa: B023
    for site in modules.values():
        if site.activation == "silu":
            site.activation, site.arguments = "relu", ()
    _prepare_(model, kinds)
    install_(model, modules, forwards)
    settings = ReplacementSettings(
        names=tuple(site.name for site in chosen),
        everything=len(chosen) == len(found.sites),
        budget=budget,
        kinds=tuple(kinds),
        degree=degree,
        granularity=granularity,
        hysteresis=hysteresis,
        surrogate=surrogate,
        floor=floor,
        polynomial=polynomial,
        max_pool=pooled,
    )
    setattr(model, SETTINGS_ATTRIBUTE, settings)
    return Replacement(model)


def count_relus(model: nn.Module, example_input: Any, kinds: Sequence[str] = ("relu", "relu6")) -> dict[str, Any]:
    """{"total", "sites": [{"name", "relus"}], "max_pool": [{"name", "comparisons"}]} of a model on this input size.

    Of a replaced model it counts all elements of the replaced sites, kept or not. Max pooling is in no budget, but each
    of its comparisons costs two servers what a kept ReLU does; average pooling has none. The model is not changed.
    """
    _check_kinds(kinds)
    example_input = _example(model, example_input)
    if hasattr(model, SETTINGS_ATTRIBUTE):
        rows = [{"name": row["name"], "relus": row["relus"]} for row in Replacement(model).table()]
    else:
        _, found = _explore(model, example_input, kinds, None)
        rows = [{"name": site.name, "relus": site.relus} for site in found.sites]
    with evaluating(model):
        pooling = [{"name": call.name, "comparisons": call.comparisons} for call in max_pools(model, example_input)]
    return {"total": sum(row["relus"] for row in rows), "sites": rows, "max_pool": pooling}


def _example(model: nn.Module, given: Any) -> tuple[Any, ...]:
    """The arguments of one forward: of a loader, its first batch; of a batch, what the model's forward takes."""
    like = next(model.parameters(), torch.empty(0))
    if isinstance(given, Iterable) and not isinstance(given, Tensor | np.ndarray | tuple | list | Mapping | str):
        given = next(iter(given), None)
    parts = tuple(given) if isinstance(given, tuple | list) and given else (given,)
    try:
        inspect.signature(model.forward).bind(*parts)
    except TypeError:  # (images, labels) for a forward that takes images
        parts = parts[:1]
    first = images_of(parts[0], like)
    if first.dim() == 3 and any(isinstance(module, nn.Conv2d) for module in model.modules()):
        raise DataError(f"the example input has shape {tuple(first.shape)}; give a batch, for example image[None]")
    rest = (part.to(like.device) if isinstance(part, Tensor) else part for part in map(as_tensor, parts[1:]))
    return first, *rest


def _explore(
    model: nn.Module,
    example_input: tuple[Any, ...],
    kinds: Sequence[str],
    select: Callable[[str], bool] | None,
) -> tuple[nn.Module, SiteMap]:
    """A private evaluation-mode copy of the model, and its call sites."""
    try:
        trial = copy.deepcopy(model).eval()
    except Exception as error:  # whatever an attribute of the user's raises
        raise TraceError(
            f"{type(model).__name__} cannot be copied, which replacement needs to try itself out:"
            f" {type(error).__name__}: {error}. Remove what copy.deepcopy refuses, for example a scripted function"
            " kept as an attribute"
        ) from error
    _prepare_(trial, kinds)
    return trial, find_sites(trial, example_input, kinds, select)


def _prepare_(model: nn.Module, kinds: Sequence[str]) -> None:
    """What is changed in a model before its call sites are looked for; nothing that it computes."""
    separate_shared_activations_(model)
    if "prelu" in kinds:
        open_prelus_(model)


def _other_kinds(model: nn.Module, kinds: Sequence[str]) -> str:
    """Which further activations the model has as modules."""
    present = {found[0] for module in model.modules() if (found := module_kind(module))}
    if any(isinstance(module, nn.PReLU) for module in model.modules()):
        present.add("prelu")
    others = [kind for kind in REPLACEABLE if kind in present and kind not in kinds]
    return f" The model also has {', '.join(others)}: name in `kinds` what is to be replaced" if others else ""


def _check_settings(
    kinds: Sequence[str], degree: int, granularity: str, hysteresis: float, surrogate: str, floor: int
) -> None:
    _check_kinds(kinds)
    if isinstance(degree, bool) or not isinstance(degree, int) or not 1 <= degree <= 8:
        raise ConfigError(f"degree {degree!r}; valid: 1 to 8 (two-party inference runs 1 and 2)")
    if granularity not in GRANULARITIES:
        raise ConfigError(f"granularity {granularity!r}; valid: {', '.join(GRANULARITIES)}")
    if surrogate not in SURROGATES:
        raise ConfigError(f"surrogate {surrogate!r}; valid: {', '.join(SURROGATES)}")
    if not 0 <= hysteresis < 1:
        raise ConfigError(f"hysteresis {hysteresis!r}; valid: 0 up to 1, the paper has 0.003")
    if floor < 0:
        raise ConfigError(f"floor {floor!r}; valid: 0 (no floor) or the ReLUs every layer keeps at least")


def _check_kinds(kinds: Sequence[str]) -> None:
    wrong = [kind for kind in kinds if kind not in REPLACEABLE]
    if wrong or not kinds or isinstance(kinds, str):
        raise ConfigError(f"kinds {kinds!r}; valid: a sequence of {', '.join(REPLACEABLE)}")


def _as_function(select: Select | None) -> Callable[[str], bool] | None:
    if select is None or callable(select):
        return select
    names = frozenset(select)
    return names.__contains__


def _probes(example: tuple[Any, ...]) -> tuple[tuple[Any, ...], ...]:
    """The example, and noise of its shape: an example of zeros would hide most mistakes."""
    generator = torch.Generator().manual_seed(0)
    noise = tuple(
        torch.randn(x.shape, generator=generator).to(x) if isinstance(x, Tensor) and x.is_floating_point() else x
        for x in example
    )
    return example, noise


def _copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.clone() if isinstance(x, Tensor) else x for x in arguments)


def _check_same(expected: Any, got: Any, where: Callable[[], str]) -> None:
    """Before any mask changes the rewritten model must compute what the original did."""
    for one, other in zip(tree_leaves(expected), tree_leaves(got)):
        if isinstance(one, Tensor) and _differ(one, other):
            raise TraceError(
                f"with a module at every call site the model computes something else, first in {where()} (largest"
                f" difference of the answer {float((one - other).abs().max()):.3g}): most likely an in-place activation"
                " overwrites a tensor that is read elsewhere, or a hook or a changed forward of an activation is lost."
                " Use inplace=False and no such hook, or place ActivationSite modules by hand"
            )


def _differ(one: Tensor, other: Tensor) -> bool:
    """Beyond rounding, measured by the largest value."""
    if one.shape != other.shape or not one.is_floating_point():
        return one.shape != other.shape or not torch.equal(one, other)
    finite = one[one.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return not torch.allclose(one, other, rtol=0.0, atol=1e-4 * largest, equal_nan=True)


def _first_difference(model: nn.Module, rewritten: nn.Module, probe: tuple[Any, ...]) -> str:
    """The module whose result differs first, by path."""
    before = _results(copy.deepcopy(model).eval(), probe)
    after = dict(_results(rewritten, probe))
    return next((name for name, value in before if name in after and _differ(value, after[name])), "the model itself")


def _results(model: nn.Module, probe: tuple[Any, ...]) -> list[tuple[str, Tensor]]:
    """Every module's result in order of completion; of one that is called several times, the first."""
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def record(module: nn.Module, args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen.setdefault(name, output.clone())

        return record

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    model(*_copies(probe))
    for handle in handles:
        handle.remove()
    return list(seen.items())
