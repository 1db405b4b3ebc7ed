"""Training: the recipe (read `recipe` first), run directories, distillation, several processes, saved models."""

from autorep.training.evaluate import accuracy
from autorep.training.recipe import replace, train_baseline
from autorep.training.saved import SavedModel, load_model, save_model
from autorep.training.settings import RECIPES, ReplaceSettings, TrainSettings

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
