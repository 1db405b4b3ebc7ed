"""A server or a client needs no torch: everything that does not train, replace or compile runs where it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autorep.bench.networks import build_program
from autorep.program.files import save, split

HELP = """
from autorep.cli import bench, main
for prefix, commands in ([], main.COMMANDS), (["bench"], bench.COMMANDS):
    for name in commands:
        try:
            code = main.main([*prefix, name, "--help"])
        except SystemExit as ended:
            code = ended.code
        assert code == 0, (prefix, name, code)
"""


class Machine:
    """Runs Python, and what it starts, with a torch that cannot be imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blocked" / "torch").mkdir(parents=True)
        blocked = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
        (folder / "blocked" / "torch" / "__init__.py").write_text(blocked)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder / "blocked"), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def autorep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "autorep.cli.main", *arguments)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    machine = Machine(tmp_path_factory.mktemp("no-torch"))
    program = build_program("digits_net", relus=50)
    save(program, machine.folder / "digits" / "program")
    split(program, machine.folder / "digits")
    np.save(machine.folder / "images.npy", np.zeros((2, *program.input.shape)))
    return machine


def test_the_block_works(machine: Machine) -> None:
    assert "No module named 'torch'" in machine.run("-c", "import torch").stderr


def test_every_help_is_shown(machine: Machine) -> None:
    ended = machine.run("-c", HELP)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["keys", "--out", "keys"],
        ["prepare", "--bundle", "digits", "--out", "stores", "--count", "2"],
        ["predict", "images.npy", "--model", "digits/program"],  # dealer, two servers and a client
        ["zoo"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_serving_and_asking_work(machine: Machine, arguments: list[str]) -> None:
    ended = machine.autorep(*arguments)
    assert ended.returncode == 0, ended.stderr


def test_names_and_numbers_are_known(machine: Machine) -> None:
    code = "import autorep; print(autorep.models.title('resnet18'), autorep.data.spec('cifar10').classes[3])"
    assert machine.run("-c", code).stdout == "ResNet-18 cat\n"


def test_what_needs_torch_says_what_to_install(machine: Machine) -> None:
    ended = machine.autorep("count", "resnet18")
    assert ended.returncode == 2
    wanted = "autorep count needs torch, which is not installed: pip install 'autorep[train]'"
    assert ended.stderr == f"autorep: error: {wanted}\n"
    assert "pip install 'autorep[train]'" in machine.run("-c", "import autorep; autorep.compile_program").stderr
