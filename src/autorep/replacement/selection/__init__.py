"""Selection methods: which ReLUs stay. One file a method, one table; any of them runs with any function of `functions`.

To add one: a file with a Selection of its own, a line here, and a field of its settings in training's ReplaceSettings.
"""

from __future__ import annotations

from typing import Any

from autorep.replacement.selection.base import Context, NoSettings, Selection
from autorep.replacement.selection.penalty import Penalty, PenaltySettings
from autorep.replacement.selection.ramp import Ramp

SELECTIONS: dict[str, type[Selection[Any]]] = {"ramp": Ramp, "penalty": Penalty}

__all__ = ["SELECTIONS", "Context", "NoSettings", "Penalty", "PenaltySettings", "Ramp", "Selection"]
