"""Settings of training runs: what a baseline and a replacement need, and recipes of the latter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from autorep.replacement.settings import CourseSettings
from autorep.settings import require


@dataclass(frozen=True)
class RunSettings:
    """What every training run needs."""

    model: str = "digits_net"
    """Network: digits_net, resnet18, resnet20, resnet32, resnet56, wide_resnet22_8, efficientnet_b2, …; options of its
    builder follow an @: resnet20@width=0.5,stem_stride=2, balanced@relus=20000."""
    data: str = "digits"
    """Data set: digits (embedded), cifar10, cifar100, tiny-imagenet, imagenet; folder (your own pictures, one folder a
    class); npz (your own arrays)."""
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
    teacher: Path | None = None
    """A finished model of the same data set (FOLDER of a run, or its model.json) whose answers are learned from beside
    the labels; a short training gains most by it."""
    distill: float = 0.9
    """Weight of the teacher's answers in the loss; the labels have the rest."""
    temperature: float = 4.0
    """Of distillation."""
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
        require(self.temperature > 0, "temperature", self.temperature, "above 0")
        require(0 <= self.distill <= 1, "distill", self.distill, "a share from 0 to 1")


@dataclass(frozen=True)
class ReplaceSettings(CourseSettings, RunSettings):
    """Replacement down to a budget; the defaults are the recipe `autorep` (see RECIPES)."""

    recipe: str = "autorep"
    """Settings to start from; a file's values and flags then override them. autorep: ranked start, exact ramp, freeze,
    fine-tune; faithful: the paper's penalty and random start; snl, aespa, pillar: the works of that name."""
    weights: Path | None = None
    """Trained all-ReLU weights to start from: a .safetensors or .pth file, or the model of a baseline run."""
    start: Path | None = None
    """A replaced model of the same budget to go on from: its masks stay, and all epochs are fine-tuning."""
    budget: float = 0.1
    """ReLUs to keep: a whole number, or a share of all when below 1."""
    latency: float = 0.0
    """Instead of a budget: seconds of one private inference on `link`, by the cost model for one core. The method is
    then `latency`, which chooses the ReLUs and the layers that become straight lines."""
    link: Literal["loopback", "lan", "wan"] = "lan"
    """Between the servers: LAN is 1 GB/s and 0.1 ms round trip, WAN 100 Mb/s and 40 ms."""
    epochs: int = 12
    """Passes over the training images in all; 0 replaces without training."""
    kinds: tuple[str, ...] = ("relu", "relu6")
    """Activations to replace: relu, relu6, leaky_relu, gelu, hardswish, elu, …; with silu, SiLU becomes ReLU first."""
    floor: int = 0
    """ReLUs every layer keeps at least."""
    hysteresis: float = 0.003
    """Half-width of the band in which a mask does not flip."""
    surrogate: Literal["softplus", "sigmoid"] = "softplus"
    """Reading of the straight-through gradient."""
    calibration_images: int = 2048
    """Training images that moments and sensitivities are measured on."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """Of the weights; coefficients and auxiliary parameters always use Adam."""
    learning_rate: float = 0.02
    """Of the weights, at its highest."""
    weight_decay: float = 5e-4
    """On convolutions and linear layers."""
    distill: float = 0.9
    """Weight of the teacher's answers in the loss; the labels have the rest."""
    temperature: float = 4.0
    """Of distillation."""
    features: float = 1.0
    """Weight of matching the teacher's features at the end of every stage."""
    features_until: Literal["freeze", "end"] = "freeze"
    """How long features are matched; to the end takes more time."""
    clip: float = 5.0
    """Largest norm of the weights' gradient; 0 does not clip."""
    lost_among: int = 0
    """Training images among which lost and far ones are counted at the end; 0 takes all, which takes longer than an
    epoch."""

    def __post_init__(self) -> None:
        RunSettings.__post_init__(self)
        CourseSettings.__post_init__(self)
        require(self.recipe in RECIPES, "recipe", self.recipe, ", ".join(RECIPES))
        require(self.latency >= 0, "latency", self.latency, "seconds above 0, or 0 to go by the budget")
        if self.latency:
            require(self.method in ("ramp", "latency"), "method", self.method, "latency, where seconds are given")
            require(self.epochs > 0, "epochs", self.epochs, "1 or more, where seconds are given")
            object.__setattr__(self, "method", "latency")
        require(self.epochs >= 0, "epochs", self.epochs, "0 or more")
        whole = 0 <= self.budget < 1 or self.budget == int(self.budget)
        require(self.budget >= 0 and whole, "budget", self.budget, "a whole number of ReLUs, or a share below 1")
        require(self.calibration_images >= 1, "calibration_images", self.calibration_images, "at least 1")
        require(self.temperature > 0, "temperature", self.temperature, "above 0")
        require(0 <= self.distill <= 1, "distill", self.distill, "a share from 0 to 1")
        require(self.lost_among >= 0, "lost_among", self.lost_among, "a number of images, or 0 for all")

    @classmethod
    def of(cls, recipe: str, **values: Any) -> Self:
        """A recipe's settings with some of them changed."""
        require(recipe in RECIPES, "recipe", recipe, ", ".join(RECIPES))
        return cls(**(RECIPES[recipe] | {"recipe": recipe} | values))

    @staticmethod
    def recipes() -> Mapping[str, Mapping[str, Any]]:
        """What each recipe changes in the defaults; `autorep.settings.parse` starts from it."""
        return RECIPES


RECIPES: dict[str, dict[str, Any]] = {
    "autorep": {},
    "faithful": {
        "method": "penalty",
        "function": "dapa2",
        "curve": 0.1,  # the authors' program starts at 1 to 20 % of DaPa; with all of it, single images diverge
        "freeze_at": 1.0,
        "optimizer": "adam",
        "learning_rate": 1e-3,  # of the authors' program; the paper says 1e-4
        "coefficient_rate": 1e-3,  # one optimiser has weights, coefficients and auxiliary parameters there
        "weight_decay": 0.0,
        "warmup": 0.0,
        "distill": 0.5,
        "features": 0.0,
        "range_weight": 0.0,
        "input_limit": 0.0,
        "stress_weight": 0.0,
        "clip": 0.0,
        "average": 0.0,
    },
    "snl": {"method": "snl", "function": "identity", "coefficient_rate": 0.0, "distill": 0.5, "freeze_at": 0.5},
    "aespa": {"method": "all", "function": "herpn", "budget": 0.0, "freeze_at": 1.0},
    "pillar": {
        "method": "pillar",
        "function": "pillar4",
        "budget": 0.0,
        "freeze_at": 1.0,
        "coefficient_rate": 0.0,
        "range_weight": 0.0,
        "input_limit": 0.0,
        "stress_weight": 0.0,
    },
}
