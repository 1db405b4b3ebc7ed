"""Replacement: find activation call sites, choose which ReLUs stay, replace the others by fitted polynomials."""

from autorep.replacement.activation import MaskedActivation
from autorep.replacement.api import count_relus, replace_activations_
from autorep.replacement.course import CourseSettings
from autorep.replacement.handle import Replacement, attach
from autorep.replacement.sites import ActivationSite

__all__ = [
    "ActivationSite",
    "CourseSettings",
    "MaskedActivation",
    "Replacement",
    "attach",
    "count_relus",
    "replace_activations_",
]
