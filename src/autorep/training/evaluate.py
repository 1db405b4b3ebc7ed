"""Accuracy of a network on labelled images."""

from __future__ import annotations

import torch
from torch import nn

from autorep.data import Dataset, Images, evaluation_batches
from autorep.training.parallel import Processes


@torch.no_grad()
def accuracy(
    model: nn.Module, images: Images, dataset: Dataset, processes: Processes | None = None, batch_size: int = 100
) -> float:
    """Percentage of images whose label gets the highest logit; several processes share the batches."""
    processes = processes or Processes(0, 1, torch.device("cpu"))
    mode = model.training
    model.eval()
    right = seen = 0
    for number, (x, y) in enumerate(evaluation_batches(images, dataset, batch_size)):
        if number % processes.count == processes.rank:
            x = x.to(processes.device).contiguous(memory_format=torch.channels_last)
            right += int((model(x).argmax(1).cpu() == y).sum())
            seen += len(y)
    model.train(mode)
    total_right, total_seen = processes.total(right, seen)
    return 100.0 * total_right / max(total_seen, 1)
