"""A small program and one running deployment, shared by the service tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from autorep.compiler.compile import compile_program
from autorep.program.ir import Program
from autorep.service.client import Client
from autorep.service.local import LocalDeployment

from .chromium import Chromium, find_chromium


def small_program(seed: int = 0, name: str = "small") -> Program:
    """An 8×8 image to ten classes: one convolution, 64 ReLUs, one linear layer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)).eval()
    images = torch.rand(64, 1, 8, 8)
    names = [f"digit {i}" for i in range(10)]
    return compile_program(model, images, name=name, class_names=names)


@pytest.fixture(scope="session")
def program() -> Program:
    return small_program()


@pytest.fixture(scope="session")
def images() -> np.ndarray:
    return np.random.default_rng(1).random((24, 1, 8, 8))


@pytest.fixture(scope="session")
def deployment(program: Program) -> Iterator[LocalDeployment]:
    """Dealer and two servers as processes; tests that break them start their own."""
    with LocalDeployment(program, prepare=4, options=("--half-expiry", "3")) as running:
        yield running


@pytest.fixture
def client(deployment: LocalDeployment) -> Iterator[Client]:
    with deployment.client() as connected:
        yield connected


@pytest.fixture
def browser() -> Iterator[Chromium]:
    binary = find_chromium()
    if binary is None:
        pytest.skip("no Chromium or Chrome is installed")
    with Chromium(binary, 1100, 1000) as running:
        yield running
