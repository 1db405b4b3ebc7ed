"""Training: the recipe (read `recipe` first), run directories, distillation, several processes, saved models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorep.lazy import lazily
from autorep.training.settings import RECIPES, ReplaceSettings, TrainSettings

if TYPE_CHECKING:
    from autorep.training.compiled import SavedModel
    from autorep.training.evaluate import accuracy
    from autorep.training.recipe import replace, train_baseline
    from autorep.training.saved import load_model, save_model

__all__ = [
    "RECIPES",
    "ReplaceSettings",
    "SavedModel",
    "TrainSettings",
    "accuracy",
    "load_model",
    "replace",
    "save_model",
    "train_baseline",
]

__getattr__ = lazily(
    __name__,
    {"SavedModel": "autorep.training.compiled", "accuracy": "autorep.training.evaluate"}
    | dict.fromkeys(("replace", "train_baseline"), "autorep.training.recipe")
    | dict.fromkeys(("load_model", "save_model"), "autorep.training.saved"),
)
