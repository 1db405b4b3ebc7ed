"""Several processes: what torchrun set up, and what this process's part of the work is.

The batch size of the settings is that of one optimiser step over all processes, so the learning rate needs no rule:
a run on two processes takes the same steps as a run on one (but for batch norm, whose statistics are per process).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autorep.errors import ConfigError


@dataclass(frozen=True)
class Processes:
    """This process among all: its rank, how many there are, and its device."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, batch: int, part: int = 0, parts: int = 1) -> slice:
        """Positions of this process's images in a batch, or in one of `parts` equal parts of it."""
        pieces = self.count * parts
        piece = part * self.count + self.rank
        return slice(batch * piece // pieces, batch * (piece + 1) // pieces)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself, or its data-parallel wrapper when there are several processes."""
        if self.count == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    @torch.no_grad()
    def average_buffers_(self, model: nn.Module) -> None:
        """Make floating-point buffers (batch-norm statistics, running moments) the mean over all processes."""
        if self.count > 1:
            for buffer in model.buffers():
                if buffer.is_floating_point():
                    dist.all_reduce(buffer)
                    buffer /= self.count

    def total(self, *values: float) -> list[float]:
        """Sums of numbers over all processes."""
        if self.count == 1:
            return list(values)
        together = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    def close(self) -> None:
        """Leave the group, so that the program can end without waiting."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(device: str) -> Processes:
    """Join the processes that torchrun started (gloo on cpu, nccl on cuda), or work alone."""
    chosen = torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device = {device}: this machine has no usable CUDA device; use --device cpu")
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Processes(0, 1, chosen)
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return Processes(dist.get_rank(), dist.get_world_size(), chosen)
