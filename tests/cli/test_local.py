"""`autorep serve --local`: one command, all roles, ended together; and models that compile without any image."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from autorep import models
from autorep.cli.named import program_of
from autorep.compiler.compile import compile_program, measure_ranges
from autorep.errors import ConfigError, RangeError
from autorep.service.client import Client
from autorep.service.local import hold_ports
from autorep.training.compiled import compile_saved
from autorep.training.saved import load_model, save_model

OWN = """
from torch import nn

def make(num_classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4, num_classes))
"""


def saved_model(folder: Path, ranges: bool) -> Path:
    """A model of one's own, as a finished run leaves it."""
    (folder / "mynet.py").write_text(OWN)
    torch.manual_seed(0)
    model = models.create(f"{folder}/mynet.py:make", 3).eval()
    info = {
        "model": f"{folder}/mynet.py:make", "num_classes": 3, "input_shape": [3, 8, 8], "data": "folder",
        "classes": ["a", "b", "c"], "mean": [0.5] * 3, "std": [0.25] * 3,
    }  # fmt: skip
    if ranges:
        info["ranges"] = measure_ranges(model, torch.rand(32, 3, 8, 8), ([0.5] * 3, [0.25] * 3))
    save_model(folder / "model", model, info)
    return folder / "model.json"


def test_a_model_with_stored_ranges_compiles_without_images_to_the_same_widths(tmp_path: Path) -> None:
    saved = load_model(saved_model(tmp_path, ranges=True))
    program = compile_saved(saved)
    x = np.random.default_rng(0).random((4, 3, 8, 8))
    with torch.no_grad():
        expected = saved.model(torch.tensor((x - 0.5) / 0.25, dtype=torch.float32)).numpy()
    assert np.abs(program.run(x, "fixed") - expected).max() < 1e-2
    json.dumps(saved.info["ranges"])
    with pytest.raises(ConfigError, match="no ranges are stored"):
        compile_saved(load_model(saved_model(tmp_path, ranges=False)))


def test_ranges_of_another_network_are_refused() -> None:
    first = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)).eval()
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    images = torch.rand(8, 1, 8, 8)
    with pytest.raises(RangeError, match="another network"):
        compile_program(other, images, ranges=measure_ranges(first, images))


def two_ports_in_a_row() -> list[socket.socket]:
    while True:
        (first,) = hold_ports(1)
        second = socket.socket()
        with contextlib.suppress(OSError):  # taken
            second.bind(("127.0.0.1", first.getsockname()[1] + 1))
            second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return [first, second]
        first.close()
        second.close()


def test_one_command_serves_a_folder_and_ends_everything(tmp_path: Path) -> None:
    program = program_of(str(saved_model(tmp_path, ranges=True)))
    program.save(tmp_path / "program")
    held = two_ports_in_a_row()
    port = held[0].getsockname()[1]
    where = ["--local", str(tmp_path / "program"), "--port", str(port)]
    command = [sys.executable, "-m", "autorep.cli.main", "serve", *where]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert f"open https://127.0.0.1:{port}" in lines[0]
        found = re.search(r"--servers (\S+) (\S+) --ca (\S+)", lines[1])
        assert found is not None, lines
        picture = np.random.default_rng(1).integers(0, 256, (1, 3, 8, 8), np.uint8)
        with Client([found[1], found[2]], ca=found[3]) as client:
            answer = client.predict(picture)[0]
        assert np.abs(answer.logits - program.run(picture / 255.0, "fixed")[0]).max() < 1e-2
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), 60).close()
    for each in held:
        each.close()
