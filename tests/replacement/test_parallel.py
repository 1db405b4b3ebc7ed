"""Two processes train together: moments, masks and weights must come out identical on both."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from autorep.replacement import attach, replace_activations_
from tests.replacement.networks import Small


def train(rank: int, folder: str) -> None:
    """One of two processes; each sees its own half of the data."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Small()
    images = torch.randn(16, 1, 6, 6)[rank * 8 : rank * 8 + 8]
    targets = torch.arange(8) % 4
    replacement = replace_activations_(model, images, budget=50)
    wrapped = DistributedDataParallel(model)
    replacement.calibrate_(wrapped, [images])
    replacement.start_from_(replacement.sensitivity_(wrapped, [(images, targets)], F.cross_entropy), spread=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    replacement.tracking = True
    replacement.track_range(1.0)
    for step in range(6):
        loss = F.cross_entropy(wrapped(images), targets) + replacement.penalty(10.0) + replacement.range_penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        replacement.step_hysteresis_() if step < 3 else replacement.step_exact_(100 - 10 * step)
    replacement.refresh_coefficients_()
    attach(wrapped).finalize_()
    torch.save(model.state_dict(), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_end_with_identical_masks_moments_and_weights(tmp_path) -> None:
    multiprocessing.spawn(train, (str(tmp_path),), nprocs=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert sum(int(value.sum()) for name, value in one.items() if name.endswith("mask")) == 50
    own = [name for name in one if "running" not in name and "moments" not in name]  # batch statistics are local
    assert all(torch.equal(one[name], two[name]) for name in own)


def test_calibration_pools_the_processes(tmp_path) -> None:
    """The moments that two halves agree on are those of one process that saw all."""
    multiprocessing.spawn(calibrate, (str(tmp_path),), nprocs=2)
    torch.manual_seed(0)
    model = Small()
    images = torch.randn(16, 1, 6, 6)
    replacement = replace_activations_(model, images)
    replacement.calibrate_(model, [images])
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, site in replacement.sites.items():
            torch.testing.assert_close(found[f"{name}.mean"], site.mean, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(found[f"{name}.std"], site.std, rtol=1e-5, atol=1e-6)


def calibrate(rank: int, folder: str) -> None:
    """Uneven parts: 4 images here, 12 there."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Small()
    images = torch.randn(16, 1, 6, 6)
    replacement = replace_activations_(model, images)
    replacement.calibrate_(model, [images[:4] if rank == 0 else images[4:]])
    torch.save(model.state_dict(), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def whole_course(rank: int, folder: str) -> None:
    """One wrapper from the first step until after finalize_."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Small()
    images = torch.randn(16, 1, 6, 6)[rank * 8 : rank * 8 + 8]
    targets = torch.arange(8) % 4
    replacement = replace_activations_(model, images, budget=50)
    wrapped = DistributedDataParallel(model)
    replacement.begin(wrapped, [images], total_steps=8)
    optimizer = torch.optim.SGD(replacement.weights(), lr=0.01)
    for step in range(10):
        loss = F.cross_entropy(wrapped(images), targets) + (replacement.loss() if step < 8 else 0.0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step < 8:
            replacement.step()
        if step == 7:
            replacement.finalize_()
    torch.save(model.state_dict(), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def test_one_wrapper_lasts_through_the_freeze_and_finalize(tmp_path) -> None:
    multiprocessing.spawn(whole_course, (str(tmp_path),), nprocs=2)
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert sum(int(value.sum()) for name, value in one.items() if name.endswith("mask")) == 50
    own = [name for name in one if "running" not in name and "moments" not in name]  # batch statistics are local
    assert all(torch.equal(one[name], two[name]) for name in own)
