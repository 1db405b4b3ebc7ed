"""Selection methods: which ReLUs stay. One file a method, one table; any of them runs with any function of `functions`.

To add one: a file with a Selection of its own, a line in this table, and where it has settings of its own a dataclass
of them in `replacement.settings` and a field of the method's name in CourseSettings there.
"""

from __future__ import annotations

from typing import Any

from autorep.errors import ConfigError
from autorep.replacement.selection.base import Context, NoSettings, Selection
from autorep.replacement.selection.penalty import Penalty
from autorep.replacement.selection.ramp import Ramp
from autorep.replacement.settings import CourseSettings
from autorep.settings import nearest

SELECTIONS: dict[str, type[Selection[Any]]] = {"ramp": Ramp, "penalty": Penalty}


def selection(settings: CourseSettings) -> Selection[Any]:
    """The method that the settings name, with its own settings; or a ConfigError with the nearest valid name."""
    if settings.method not in SELECTIONS:
        raise ConfigError(
            f"method = {settings.method}: no such selection; {nearest(settings.method, list(SELECTIONS))}"
        )
    return SELECTIONS[settings.method](getattr(settings, settings.method, NoSettings()))


__all__ = ["SELECTIONS", "Context", "NoSettings", "Penalty", "Ramp", "Selection", "selection"]
