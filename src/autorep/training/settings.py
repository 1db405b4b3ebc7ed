"""Settings of training runs: what a baseline and a replacement need, and what the two recipes fill in."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autorep.errors import ConfigError


@dataclass(frozen=True)
class RunSettings:
    """What every training run needs."""

    model: str = "digits_net"
    """Network: digits_net, resnet18, resnet20, resnet32, resnet56, wide_resnet22_8, efficientnet_b2, …"""
    data: str = "digits"
    """Data set: digits (embedded), cifar10, cifar100, tiny-imagenet, imagenet."""
    data_path: Path | None = None
    """Archive, folder or .npz file of the data set; not needed for digits."""
    image_size: int | None = None
    """Side of the images read from an ImageNet-style tree; other data sets have their own."""
    out: Path = Path("runs/latest")
    """Run directory: settings, log, checkpoints, the finished model."""
    resume: bool = False
    """Continue the run in `out` from its last checkpoint."""
    seed: int = 0
    """Decides weights, order and augmentation; a CPU run with the same seed repeats bit for bit."""
    batch_size: int = 128
    """Images per optimiser step, over all processes and accumulated parts together."""
    accumulate: int = 1
    """Parts a batch is computed in, to save memory; the step is the same."""
    held_out: float = 0.05
    """Share of the training images set apart to choose the best epoch by."""
    augment: bool = True
    """Random crops and, where the data set allows it, mirror images."""
    device: str = "cpu"
    """cpu, cuda or cuda:N; under torchrun every process takes its own cuda device."""
    threads: int | None = None
    """CPU threads; default is torch's own choice."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward and backward passes; auto is bfloat16 on cuda and float32 on cpu."""
    channels_last: bool = True
    """Memory layout of images and convolutions; faster on current CPUs and GPUs."""
    checkpoint_every: int = 200
    """Steps between checkpoints; one is also written after every epoch."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run directory (pip install 'autorep[tensorboard]')."""
    plots: bool = False
    """Draw count, accuracy and flips per epoch into the run directory (pip install 'autorep[report]')."""

    def __post_init__(self) -> None:
        require(0 <= self.held_out < 1, "held_out", self.held_out, "a share from 0 up to 1, for example 0.05")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "at least 1")
        require(1 <= self.accumulate <= self.batch_size, "accumulate", self.accumulate, "1 to batch_size")
        require(self.checkpoint_every >= 1, "checkpoint_every", self.checkpoint_every, "at least 1 step")
        require(self.threads is None or self.threads >= 1, "threads", self.threads, "at least 1")


@dataclass(frozen=True)
class TrainSettings(RunSettings):
    """An all-ReLU baseline: SGD with momentum and a cosine schedule."""

    epochs: int = 200
    """Passes over the training images."""
    weights: Path | None = None
    """Start from these weights instead of random ones."""
    learning_rate: float = 0.1
    """At its highest, after the warm-up."""
    momentum: float = 0.9
    """Of SGD (Nesterov)."""
    weight_decay: float = 5e-4
    """On convolutions and linear layers; batch norm and biases have none."""
    warmup: float = 0.02
    """Share of all steps in which the learning rate rises from 0."""
    label_smoothing: float = 0.0
    """Of the cross-entropy."""
    small_sizes: tuple[int, ...] = ()
    """Side of the images in the first epochs, one entry an epoch; after these they have their full size. Small images
    cost a quarter of the time and teach the early layers as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            all(size >= 8 for size in self.small_sizes), "small_sizes", self.small_sizes, "sides of 8 pixels or more"
        )
        require(len(self.small_sizes) <= self.epochs, "small_sizes", self.small_sizes, "at most one entry an epoch")
        require(self.epochs >= 0, "epochs", self.epochs, "0 or more")
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "above 0")
        require(0 <= self.warmup < 1, "warmup", self.warmup, "a share from 0 up to 1")


@dataclass(frozen=True)
class ReplaceSettings(RunSettings):
    """Replacement down to a budget. Settings left at None take the recipe's value (see RECIPES)."""

    weights: Path | None = None
    """Trained all-ReLU weights to start from: a .safetensors or .pth file, or the model of a baseline run."""
    budget: float = 0.1
    """ReLUs to keep: a whole number, or a share of all when below 1."""
    recipe: Literal["autorep", "faithful"] = "autorep"
    """autorep: ranked start, exact ramp, freeze, fine-tune; faithful: the paper's penalty and random start."""
    epochs: int = 12
    """Passes over the training images in all; 0 replaces by calibration alone."""
    kinds: tuple[str, ...] = ("relu", "relu6")
    """Activations to replace; with silu, SiLU becomes ReLU first."""
    degree: int = 2
    """Of the polynomials; two-party inference runs 1 and 2."""
    floor: int = 0
    """ReLUs every layer keeps at least."""
    hysteresis: float = 0.003
    """Half-width of the band in which a mask does not flip."""
    surrogate: Literal["softplus", "sigmoid"] = "softplus"
    """Reading of the straight-through gradient."""
    calibration_images: int = 2048
    """Training images that moments and sensitivities are measured on."""
    curve: float | None = None
    """First curvature of the polynomials as a share of DaPa's: many full quadratics in a row blow outliers up."""
    start: Literal["sensitivity", "uniform", "constant"] | None = None
    """First values of the auxiliary parameters."""
    budget_rule: Literal["ramp", "penalty"] | None = None
    """ramp: exactly so many ReLUs at every step, falling cubically; penalty: the paper's."""
    penalty_weight: float | None = None
    """Weight of the paper's penalty, per share of all ReLUs above the budget (only with the penalty rule)."""
    freeze_at: float | None = None
    """Share of all steps after which masks are final."""
    optimizer: Literal["sgd", "adam"] | None = None
    """Of the weights; coefficients and auxiliary parameters always use Adam."""
    learning_rate: float | None = None
    """Of the weights, at its highest."""
    coefficient_rate: float | None = None
    """Of the polynomials' coefficients, with Adam; 0 keeps the first ones."""
    aux_rate: float | None = None
    """Of the auxiliary parameters."""
    weight_decay: float | None = None
    """On convolutions and linear layers."""
    warmup: float | None = None
    """Share of all steps in which the learning rate rises from 0."""
    distill: float | None = None
    """Weight of the teacher's answers in the loss; the labels have the rest."""
    temperature: float = 4.0
    """Of distillation."""
    features: float | None = None
    """Weight of matching the teacher's features at the end of every stage."""
    features_until: Literal["freeze", "end"] | None = None
    """How long features are matched; to the end takes more time."""
    range_weight: float | None = None
    """Weight of the penalty on polynomial inputs beyond `range_limit` deviations."""
    range_limit: float = 3.0
    """Deviations from the mean that polynomial inputs may reach freely."""
    input_limit: float | None = None
    """Deviations at which inputs of replaced activations are cut off in training until the freeze, later four times
    as many; 0 does not cut off."""
    clip: float | None = None
    """Largest norm of the weights' gradient; 0 does not clip."""
    average: float | None = None
    """Decay of the running average of weights while fine-tuning; 0 keeps the last weights."""
    refresh_epochs: float | None = None
    """Epochs in which coefficients follow the running moments before they are trained."""
    reestimate: bool | None = None
    """Measure batch-norm statistics afresh on training images at the end; kept if held-out images do better."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epochs >= 0, "epochs", self.epochs, "0 or more")
        require(self.budget >= 0, "budget", self.budget, "a number of ReLUs, or a share below 1")
        require(self.calibration_images >= 1, "calibration_images", self.calibration_images, "at least 1")
        require(self.temperature > 0, "temperature", self.temperature, "above 0")
        for name in ("freeze_at", "warmup", "distill", "average", "curve"):
            value = getattr(self, name)
            require(value is None or 0 <= value <= 1, name, value, "a share from 0 to 1")

    def resolved(self, layers: int = 1) -> ReplaceSettings:
        """The same settings with every None filled in from the recipe, for a network of so many activation layers."""
        recipe = RECIPES[self.recipe]
        if self.recipe == "autorep" and layers >= DEEP_LAYERS:
            recipe = recipe | DEEP
        return dataclasses.replace(self, **{name: recipe[name] for name in recipe if getattr(self, name) is None})

    @property
    def first_curve(self) -> float:
        """Flat first curves are for training; where there is none, scores must rank by what full quadratics miss."""
        return 1.0 if self.curve is None or self.epochs == 0 else self.curve


RECIPES: dict[str, dict[str, Any]] = {
    "autorep": {
        "curve": 0.4,
        "start": "sensitivity",
        "budget_rule": "ramp",
        "penalty_weight": 0.0,
        "freeze_at": 0.25,
        "optimizer": "sgd",
        "learning_rate": 0.02,
        "coefficient_rate": 2e-3,
        "aux_rate": 1e-3,
        "weight_decay": 5e-4,
        "warmup": 0.05,
        "distill": 0.9,
        "features": 1.0,
        "features_until": "freeze",
        "range_weight": 2.0,
        "input_limit": 8.0,
        "clip": 5.0,
        "average": 0.99,
        "refresh_epochs": 0.0,
        "reestimate": True,
    },
    "faithful": {
        "curve": 0.1,  # the authors' program starts at 1 to 20 % of DaPa; with all of it, single images diverge
        "start": "uniform",
        "budget_rule": "penalty",
        "penalty_weight": 80.0,
        "freeze_at": 1.0,
        "optimizer": "adam",
        "learning_rate": 1e-4,
        "coefficient_rate": 1e-4,
        "aux_rate": 1e-3,
        "weight_decay": 0.0,
        "warmup": 0.0,
        "distill": 0.5,
        "features": 0.0,
        "features_until": "freeze",
        "range_weight": 0.0,
        "input_limit": 0.0,
        "clip": 0.0,
        "average": 0.0,
        "refresh_epochs": 1.0,
        "reestimate": False,
    },
}

DEEP_LAYERS = 24
DEEP = {"curve": 0.2, "features_until": "end", "range_weight": 5.0, "input_limit": 6.0}
"""What the default recipe takes in deep networks: the longer a chain of quadratics, the sooner an outlier runs away in
it. With the values of shallow networks ResNet-32 (31 layers) collapsed in its second epoch; ResNet-20 (19) does not."""


def require(valid: bool, name: str, value: object, what: str) -> None:
    """Raise a ConfigError that names the setting and what would be valid."""
    if not valid:
        raise ConfigError(f"{name} = {value}; valid: {what}")
