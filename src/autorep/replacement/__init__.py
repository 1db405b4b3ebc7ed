"""Replacement: find activation call sites, choose which ReLUs stay, replace the others by fitted polynomials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorep.lazy import lazily
from autorep.replacement.settings import CourseSettings

if TYPE_CHECKING:
    from autorep.replacement.activation import MaskedActivation
    from autorep.replacement.api import count_relus, replace_activations_
    from autorep.replacement.handle import Replacement, attach
    from autorep.replacement.reconstruction import fit_without_training_
    from autorep.replacement.sites import ActivationSite

__all__ = [
    "ActivationSite",
    "CourseSettings",
    "MaskedActivation",
    "Replacement",
    "attach",
    "count_relus",
    "fit_without_training_",
    "replace_activations_",
]

__getattr__ = lazily(
    __name__,
    {"fit_without_training_": "autorep.replacement.reconstruction"}
    | {"MaskedActivation": "autorep.replacement.activation", "ActivationSite": "autorep.replacement.sites"}
    | dict.fromkeys(("count_relus", "replace_activations_"), "autorep.replacement.api")
    | dict.fromkeys(("Replacement", "attach"), "autorep.replacement.handle"),
)
