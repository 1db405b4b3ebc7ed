"""Selection methods: which ReLUs stay. One file a method, one table; any of them runs with any function of `functions`.

To add one: a file with a Selection of its own, a line in this table, and where it has settings of its own a dataclass
of them in `replacement.settings` and a field of the method's name in CourseSettings there.
"""

from __future__ import annotations

from typing import Any

from autorep.errors import ConfigError
from autorep.replacement.selection.all import Everything
from autorep.replacement.selection.base import Context, NoSettings, Selection
from autorep.replacement.selection.bcd import Bcd
from autorep.replacement.selection.deepreduce import DeepReduce
from autorep.replacement.selection.delphi import Delphi
from autorep.replacement.selection.l1 import L1
from autorep.replacement.selection.latency import Latency
from autorep.replacement.selection.penalty import Penalty
from autorep.replacement.selection.pillar import Pillar
from autorep.replacement.selection.ramp import Ramp
from autorep.replacement.selection.random import Random
from autorep.replacement.selection.safenet import Safenet
from autorep.replacement.selection.senet import Senet
from autorep.replacement.selection.snip import Snip
from autorep.replacement.selection.snl import Snl
from autorep.replacement.selection.taylor import Taylor
from autorep.replacement.selection.uniform import Uniform
from autorep.replacement.settings import CourseSettings
from autorep.settings import nearest

SELECTIONS: dict[str, type[Selection[Any]]] = {
    "ramp": Ramp,
    "penalty": Penalty,
    "latency": Latency,
    "random": Random,
    "uniform": Uniform,
    "snip": Snip,
    "taylor": Taylor,
    "snl": Snl,
    "senet": Senet,
    "bcd": Bcd,
    "deepreduce": DeepReduce,
    "delphi": Delphi,
    "safenet": Safenet,
    "l1": L1,
    "all": Everything,
    "pillar": Pillar,
}


def selection(settings: CourseSettings) -> Selection[Any]:
    """The method that the settings name, with its own settings; or a ConfigError with the nearest valid name."""
    if settings.method not in SELECTIONS:
        raise ConfigError(
            f"method = {settings.method}: no such selection; {nearest(settings.method, list(SELECTIONS))}"
        )
    return SELECTIONS[settings.method](getattr(settings, settings.method, NoSettings()))


__all__ = ["SELECTIONS", "Context", "NoSettings", "Penalty", "Ramp", "Selection", "selection"]
