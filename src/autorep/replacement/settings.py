"""Settings of a replacement: those of its course, and the small ones of each selection method. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorep.errors import ConfigError


@dataclass(frozen=True)
class PenaltySettings:
    """Of the paper's rule."""

    weight: float = 80.0
    """Per share of all ReLUs above the budget: the paper's mu times all ReLUs, the lambda of the authors' program (6K:
    200, 9K: 140, 12.9K: 80, 15K: 60, 25K and more: 40 for a ResNet-18 on CIFAR-100)."""
    refresh_epochs: float = 1.0
    """Epochs in which coefficients follow the running moments before they are trained."""


@dataclass(frozen=True)
class SnlSettings:
    """Of selective network linearisation."""

    weight: float = 5e-6
    """Of the gates' L1 norm at first. The original has 1e-5 beside labels and teacher at full weight each, which
    distill = 0.5 halves."""
    settle: float = 0.05
    """Share of the selection after which the weight may grow (five epochs of the original's hundreds)."""


@dataclass(frozen=True)
class BcdSettings:
    """Of block coordinate descent."""

    blocks: int = 8
    """Cuts from twice the budget down to it."""
    tries: int = 8
    """Blocks drawn for each cut."""
    tolerance: float = 0.3
    """Points of accuracy below which the first block is taken."""


@dataclass(frozen=True)
class PillarSettings:
    """Of PILLAR's regularised polynomials."""

    weight: float = 5e-5
    """Of the wall around the interval."""
    wall: float = 4.8
    """Inputs at which it is 1, whatever its power."""
    reach: float = 5.0
    """Inputs at which they are cut off in training: the interval that the polynomials were fitted on."""


@dataclass(frozen=True)
class CourseSettings:
    """How a replacement goes; the defaults are the recipe that works on any network."""

    method: str = "ramp"
    """Which ReLUs stay: ramp (exactly so many at every step, falling cubically), penalty (the paper's), latency (what
    so many seconds buy, see `autorep replace --latency`); of others'
    work snip, taylor, snl, senet, bcd, deepreduce, delphi, safenet, l1; all and pillar (none stay); as controls
    random, uniform."""
    penalty: PenaltySettings = field(default_factory=PenaltySettings)
    """Of the method `penalty`."""
    snl: SnlSettings = field(default_factory=SnlSettings)
    """Of the method `snl`."""
    bcd: BcdSettings = field(default_factory=BcdSettings)
    """Of the method `bcd`."""
    pillar: PillarSettings = field(default_factory=PillarSettings)
    """Of the method `pillar`."""
    function: str = "fit2"
    """What the others become: fit2 (quadratics by least squares on what each channel sees), dapa2 (the paper's, as if
    that were normal), dapa1, identity, zero, square, delphi, herpn, pillar4, …"""
    curve: float = 0.5
    """First curvature of fitted polynomials, as a share: with all of it, short trainings of shallow networks end more
    accurate, and deep ones run away."""
    freeze_at: float = 0.25
    """Share of all steps after which masks are final."""
    coefficient_rate: float = 2e-3
    """Of the polynomials' coefficients, with Adam; 0 keeps the first ones."""
    aux_rate: float = 1e-3
    """Of the auxiliary parameters, with Adam."""
    warmup: float = 0.05
    """Share of all steps in which learning rates rise from 0."""
    range_weight: float = 2.0
    """Weight of the penalty on polynomial inputs beyond `range_limit` deviations, a mean over the batch."""
    range_limit: float = 3.0
    """Deviations from the mean that polynomial inputs may reach freely."""
    input_limit: float = 8.0
    """Deviations at which inputs of replaced activations are cut off in training; 0 does not cut off."""
    input_opening: float = 2.0
    """From the freeze to the last step, the cut-off opens evenly to so many times `input_limit`."""
    stress_weight: float = 2.0
    """Weight of the stress (see `stress`) in every other step from `stress_from` on; 0 leaves it out."""
    stress_from: float = 0.75
    """Share of all steps after which the stress begins, never before the freeze: late, when the rate has fallen, it
    costs least accuracy. A network that starts with final masks has it from its first step."""
    stress_clip: float = 5.0
    """Largest norm of the gradient that the stress may add to a step."""
    stress_limit: float = 10.0
    """Deviations that polynomial inputs of stressed images may reach freely."""
    stress_images: int = 32
    """Images under stress: half of them those that go furthest in the batch, the others distorted."""
    average: float = 0.99
    """Decay of the running average of weights; 0 keeps the last weights."""

    def __post_init__(self) -> None:
        valid: list[tuple[bool, str, str]] = [
            (0 <= getattr(self, name) <= 1, name, "a share from 0 to 1")
            for name in ("curve", "freeze_at", "warmup", "stress_from", "average")
        ]
        rates = (
            "coefficient_rate",
            "aux_rate",
            "range_weight",
            "range_limit",
            "input_limit",
            "stress_weight",
        )
        valid += [(getattr(self, name) >= 0, name, "0 or more") for name in rates]
        valid += [
            (self.input_opening >= 1, "input_opening", "1 or more"),
            (self.stress_clip > 0, "stress_clip", "above 0"),
            (self.stress_limit > 0, "stress_limit", "above 0"),
            (self.stress_images >= 2, "stress_images", "2 or more"),
        ]
        for holds, name, what in valid:
            if not holds:
                raise ConfigError(f"{name} = {getattr(self, name)}; valid: {what}")
