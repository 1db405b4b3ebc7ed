"""The replaced activations of one model: their masks, polynomials and running moments, and every way to change them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autorep.errors import BudgetError, ConfigError
from autorep.replacement import moments
from autorep.replacement.activation import MaskedActivation
from autorep.replacement.budget import check_budget, keep_at_least, keep_best
from autorep.replacement.indicator import hysteresis_step

SUDDEN = 0.05  # share of all ReLUs that may be cut at once
SETTINGS_ATTRIBUTE = "replacement_settings"  # where a replaced model keeps what `attach` needs


@dataclass(frozen=True)
class ReplacementSettings:
    """How a model's activations were replaced; `describe()` gives it as JSON."""

    names: tuple[str, ...]
    everything: bool
    budget: int | None
    kinds: tuple[str, ...]
    degree: int
    granularity: str
    hysteresis: float
    surrogate: str
    floor: int
    polynomial: str = "free"
    max_pool: int = 0  # comparisons that max pooling makes beside the ReLUs


class ReplacedActivations:
    """What a course, its method and loops that go their own way work with; people hold a `Replacement`.

    Attributes:
        sites: name -> MaskedActivation, in execution order.
        total: all activation elements of one image.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.sites: dict[str, MaskedActivation] = {}
        for name in self.settings.names:
            site = model.get_submodule(name)
            assert isinstance(site, MaskedActivation)
            self.sites[name] = site
        self.total = sum(site.mask.numel() for site in self.sites.values())

    @property
    def settings(self) -> ReplacementSettings:
        settings = getattr(self._model, SETTINGS_ATTRIBUTE)
        assert isinstance(settings, ReplacementSettings)
        return settings

    @property
    def budget(self) -> int | None:
        """ReLUs to keep in the end."""
        return self.settings.budget

    @budget.setter
    def budget(self, budget: float | None) -> None:
        if budget is not None:
            budget = check_budget(budget, [site.mask.numel() for site in self.sites.values()], self.settings.floor)
        setattr(self._model, SETTINGS_ATTRIBUTE, dataclasses.replace(self.settings, budget=budget))

    @property
    def frozen(self) -> bool:
        """Whether the masks are final."""
        return all(bool(site.frozen) for site in self.sites.values())

    @property
    def tracking(self) -> bool:
        """Whether training forwards follow the running moments; set it to switch."""
        return all(site.tracking for site in self.sites.values())

    @tracking.setter
    def tracking(self, on: bool) -> None:
        for site in self.sites.values():
            site.tracking = on

    def count(self) -> int:
        """Activations kept now."""
        return int(sum(site.mask.sum() for site in self.sites.values()))

    def table(self) -> list[dict[str, Any]]:
        """One row per site: name, relus, kept, channels, shape."""
        return [
            {
                "name": name,
                "relus": site.mask.numel(),
                "kept": int(site.mask.sum()),
                "channels": site.channels,
                "shape": list(site.mask.shape),
            }
            for name, site in self.sites.items()
        ]

    def describe(self) -> dict[str, Any]:
        """JSON-able keyword arguments with which replace_activations_ rebuilds this on a fresh model."""
        settings = self.settings
        description = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
        names, everything, _ = (description.pop(name) for name in ("names", "everything", "max_pool"))
        return description | {"kinds": list(settings.kinds), "select": None if everything else list(names)}

    def weights(self) -> list[nn.Parameter]:
        """All parameters but the replacement's own, which `step` moves: give these to your optimiser."""
        own = {id(parameter) for parameter in (*self.aux_parameters(), *self.coefficient_parameters())}
        return [parameter for parameter in self._model.parameters() if id(parameter) not in own]

    def aux_parameters(self) -> list[nn.Parameter]:
        """The stand-ins of the masks, for an optimiser group of their own."""
        return [site.aux for site in self.sites.values()]

    def coefficient_parameters(self) -> list[nn.Parameter]:
        """The polynomials' coefficients, for an optimiser group of their own."""
        return [site.coefficients for site in self.sites.values()]

    def calibrate_(self, model: nn.Module, batches: moments.Batches, curve: float = 1.0) -> None:
        """Exact per-channel mean and deviation of every site's input over the batches, then DaPa polynomials.

        `curve` is the share of their curvature to start with: many full quadratics in a row blow outliers up.
        One pass in evaluation mode; in a torch.distributed run all processes call it and get the same numbers.
        `model` is the replaced model or its data-parallel wrapper; a batch is a tensor or (images, …).
        """
        for name, (mean, std) in moments.exact_moments(model, self.sites, batches).items():
            self.sites[name].set_moments_(mean, std, curve)

    @torch.no_grad()
    def refresh_coefficients_(self, curve: float = 1.0) -> None:
        """DaPa polynomials from the running moments, with a share `curve` of their curvature.

        Moments are averaged over the processes of a torch.distributed run.
        """
        processes = moments.all_reduce_(torch.ones((), device=next(iter(self.sites.values())).mask.device))
        for site in self.sites.values():
            mean, variance = site.moments
            square = moments.all_reduce_(variance + mean.square()) / processes
            common = moments.all_reduce_(mean.clone()) / processes
            site.set_moments_(common, (square - common.square()).clamp_min(0).sqrt(), curve)

    def penalty(self, weight: float) -> Tensor:
        """weight·max(count − budget, 0)/total, whose gradient reaches aux through the surrogate.

        The paper's mu counts single ReLUs: weight = mu·total, which is the lambda of the authors' program
        (6K: 200, 9K: 140, 12.9K: 80, 15K: 60, 25K and more: 40 for a ResNet-18 on CIFAR-100).
        """
        budget = self.require_budget()
        auxes = self.aux_parameters()
        excess = self.count() - budget
        if excess <= 0 or self.frozen:
            return auxes[0].new_zeros(())
        # (aux − aux)·slope is zero but carries the straight-through gradient of the count.
        gradients = [((aux - aux.detach()) * site.slope()).sum() for aux, site in zip(auxes, self.sites.values())]
        return (excess + torch.stack(gradients).sum()) * (weight / self.total)

    @torch.no_grad()
    def step_hysteresis_(self) -> int:
        """Hysteresis step of every mask, after the optimiser's step; returns how many masks flipped."""
        if self.frozen:
            return 0
        new = [hysteresis_step(site.mask, site.aux, self.settings.hysteresis) for site in self.sites.values()]
        if self.settings.floor:
            new = [keep_at_least(mask, aux, self.settings.floor) for mask, aux in zip(new, self.aux_parameters())]
        return self._set_masks(new)

    @torch.no_grad()
    def step_exact_(self, budget: int) -> int:
        """Keep exactly the `budget` elements of highest aux; returns how many masks flipped.

        Hysteresis is a swap margin here: an outsider enters only when its aux beats an incumbent's by more than
        2·hysteresis. Needs no penalty weight, since the count is exact after every step.
        """
        if self.frozen:
            raise BudgetError(f"the masks are final at {self.count()} ReLUs; step_exact_ cannot change them")
        return self._set_masks(self._best(budget, 2 * self.settings.hysteresis))

    @torch.no_grad()
    def step_quotas_(self, quotas: Sequence[int]) -> int:
        """Keep exactly so many elements of each site, those of highest aux; returns how many masks flipped."""
        masks = [site.mask for site in self.sites.values()]
        return self._set_masks(keep_best(self.aux_parameters(), masks, sum(quotas), 0.0, quotas=quotas))

    @torch.no_grad()
    def set_masks_(self, masks: Mapping[str, Tensor]) -> int:
        """These masks, by site; returns how many flipped. Final masks cannot change."""
        if self.frozen:
            raise BudgetError(f"the masks are final at {self.count()} ReLUs; they cannot be set again")
        return self._set_masks([masks[name].to(site.mask.dtype) for name, site in self.sites.items()])

    @torch.no_grad()
    def settle_(self, budget: int) -> int:
        """Masks at exactly the budget and final, however far that is; returns how many flipped."""
        if self.frozen and self.count() != budget:
            raise BudgetError(f"the masks are final at {self.count()} ReLUs; they cannot be finalised to {budget}")
        auxes = self.aux_parameters()
        spread = max(float(aux.max()) for aux in auxes) - min(float(aux.min()) for aux in auxes)
        flips = self._set_masks(self._best(budget, margin=spread + 1.0))
        self.freeze_()
        return flips

    def refuse_sudden_cut(self, when: str, budget: int | None = None) -> None:
        """A BudgetError when ReLUs above the budget are so many that cutting them at once would ruin the network."""
        budget = self.require_budget() if budget is None else budget
        excess = self.count() - budget
        if excess > SUDDEN * self.total:
            raise BudgetError(
                f"{when}, {self.count():,} of {self.total:,} ReLUs are still kept and the budget is {budget:,}: cutting"
                f" {excess:,} at once would ruin the network. Take the remaining steps, begin with fewer total_steps,"
                " or give the penalty more weight"
            )

    def freeze_(self) -> None:
        """Make the masks final; aux stops training.

        Among several processes aux still takes gradients, which nothing uses: a data-parallel wrapper that was made
        before expects them. `drop_aux_gradients_` ends that; wrap the model anew afterwards.
        """
        for site in self.sites.values():
            site.freeze_(aux_has_gradients=moments.process_count() > 1)

    def drop_aux_gradients_(self) -> None:
        """Let final masks' aux take no gradients any more; a data-parallel wrapper must be made after this."""
        for aux in self.aux_parameters():
            aux.requires_grad_(False)
            aux.grad = None

    def sensitivity_(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        loss_fn: Callable[..., Tensor],
        moment: moments.Moment = "rms",
    ) -> dict[str, Tensor]:
        """Change of the loss when an element alone is replaced (see `moments`): name -> tensor."""
        return moments.sensitivity(model, self.sites, batches, loss_fn, moment)

    @torch.no_grad()
    def start_from_(self, scores: Mapping[str, Tensor], spread: float = 1.0) -> None:
        """Set aux from the rank of the scores over all sites: spread/total for the lowest up to `spread`."""
        missing = [name for name in self.sites if name not in scores]
        if missing:
            raise ConfigError(
                f"no scores for {', '.join(missing[:3])}; pass one tensor per site, as sensitivity_ gives"
            )
        flat = torch.cat([scores[name].reshape(-1) for name in self.sites])
        ranks = torch.empty_like(flat, dtype=torch.float64)
        order = torch.argsort(flat, stable=True)
        ranks[order] = torch.arange(1, self.total + 1, dtype=torch.float64, device=flat.device)
        values = (ranks * (spread / self.total)).split([site.mask.numel() for site in self.sites.values()])
        for site, value in zip(self.sites.values(), values):
            site.aux.copy_(value.reshape(site.aux.shape))

    @torch.no_grad()
    def start_uniform_(self, generator: torch.Generator | None = None) -> None:
        """Set aux as the authors' program does: uniform in (0, 1)."""
        for site in self.sites.values():
            site.aux.uniform_(0.0, 1.0, generator=generator)

    def track_range(self, limit: float | None = 4.0) -> None:
        """Collect the range penalty in training forwards beyond `limit` deviations; None switches it off."""
        for site in self.sites.values():
            site.range_limit = limit
            site.range_sum = None

    def limit_inputs(self, deviations: float) -> None:
        """Cut inputs off so many deviations from their mean in training forwards; infinity switches it off."""
        for site in self.sites.values():
            site.input_limit = deviations

    def range_penalty(self) -> Tensor:
        """Mean of relu(|Z − mean|/std − limit)² over the inputs of polynomials in the last training forward.

        Keeps fixed-point inference within range. Needs track_range(); each forward's penalty is read once.
        """
        return self.mean_excess(self.take_range_sums())

    def take_range_sums(self) -> Tensor:
        """(sites, images): Σ relu(|Z − mean|/std − limit)² over an image's inputs of polynomials; each is read once."""
        sums = [site.range_sum for site in self.sites.values() if site.range_sum is not None]
        if not sums:
            raise ConfigError("no range penalty was collected: call track_range() and run a training forward before it")
        for site in self.sites.values():
            site.range_sum = None
        return torch.stack(sums)

    def mean_excess(self, sums: Tensor) -> Tensor:
        """What `take_range_sums` gave, per input of a polynomial."""
        return sums.sum() / max((self.total - self.count()) * sums.shape[1], 1)

    def require_budget(self) -> int:
        """The budget, which must have been set."""
        if self.budget is None:
            raise BudgetError(f"no budget was given; set replacement.budget to 0 … {self.total}")
        return self.budget

    def _best(self, budget: int, margin: float) -> list[Tensor]:
        masks = [site.mask for site in self.sites.values()]
        return keep_best(self.aux_parameters(), masks, budget, margin, self.settings.floor)

    def _set_masks(self, masks: Sequence[Tensor]) -> int:
        flips = 0 * masks[0].sum()
        for site, mask in zip(self.sites.values(), masks):
            flips = flips + (site.mask != mask).sum()
            site.mask.copy_(mask)
        return int(flips)
