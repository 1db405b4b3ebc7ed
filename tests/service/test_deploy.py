"""docs/deploy.md, run as written: three machines as network namespaces with addresses of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from autorep import models
from autorep.training.saved import save_model

DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"
ADDRESSES = {"server0": "10.77.0.1", "server1": "10.77.0.2", "owner": "10.77.0.3"}
BLOCK = re.compile(r"^```sh (owner|server0|server1)( background)?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True)


def namespace(machine: str) -> str:
    return f"autorep-{machine}-{os.getpid()}"


def can_make_namespaces() -> bool:
    name = f"autorep-probe-{os.getpid()}"
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    command("ip", "netns", "del", name)
    return True


@pytest.fixture
def network() -> Iterator[None]:
    """Two servers, each with a cable to the owner's machine, which bridges them."""
    owner = namespace("owner")
    try:
        for machine in ADDRESSES:
            command("ip", "netns", "add", namespace(machine))
            command("ip", "-n", namespace(machine), "link", "set", "lo", "up")
        command("ip", "-n", owner, "link", "add", "bridge", "type", "bridge")
        command("ip", "-n", owner, "addr", "add", f"{ADDRESSES['owner']}/24", "dev", "bridge")
        command("ip", "-n", owner, "link", "set", "bridge", "up")
        for machine in ("server0", "server1"):
            own, port = namespace(machine), f"to-{machine}"
            command("ip", "-n", own, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", owner)
            command("ip", "-n", own, "addr", "add", f"{ADDRESSES[machine]}/24", "dev", "eth0")
            command("ip", "-n", own, "link", "set", "eth0", "up")
            command("ip", "-n", owner, "link", "set", port, "master", "bridge")
            command("ip", "-n", owner, "link", "set", port, "up")
        yield
    finally:
        for machine in ADDRESSES:
            subprocess.run(["ip", "netns", "del", namespace(machine)], capture_output=True)


def write_model(folder: Path) -> None:
    """The trained model that the document starts from, and images to ask about."""
    torch.manual_seed(0)
    model = models.create("digits_net")
    model(torch.randn(64, 1, 8, 8))
    facts = {
        "model": "digits_net", "num_classes": 10, "input_shape": [1, 8, 8], "mean": [0.3], "std": [0.4],
        "classes": [str(i) for i in range(10)], "data": "digits",
    }  # fmt: skip
    save_model(folder / "model", model.eval(), facts)
    np.save(folder / "images.npy", np.random.default_rng(0).random((2, 1, 8, 8)))


def carry(folder: Path, command: str) -> None:
    """What the document does with scp before the command that needs it: to each machine its own parts only."""
    for party in (0, 1):
        keys, target = Path("keys") / f"party{party}", folder / f"server{party}"
        if command.startswith("autorep keys sign"):
            (folder / "owner" / keys).mkdir()
            shutil.copy(target / keys / "request.pem", folder / "owner" / keys)
        elif command.startswith("autorep dealer"):
            shutil.copytree(folder / "owner" / keys, target / keys, dirs_exist_ok=True)
            for part in ("public", f"party{party}"):
                shutil.copytree(folder / "owner" / "model" / part, target / "model" / part)


def test_document_names_every_machine() -> None:
    machines = {machine for machine, _, _ in BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))}
    assert machines == set(ADDRESSES)


@pytest.mark.slow
@pytest.mark.skipif(not can_make_namespaces(), reason="needs root and iproute2 to make network namespaces")
def test_document_runs_as_written(network: None, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "autorep"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m autorep.cli.main "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{script.parent}:{os.environ['PATH']}"}
    for machine in ADDRESSES:
        (tmp_path / machine).mkdir()
    write_model(tmp_path / "owner")
    background: list[subprocess.Popen[bytes]] = []
    outputs: dict[str, str] = {}
    try:
        for machine, stays, text in BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")):
            # `exec`, so that the process that is ended is the server itself and not a shell around it
            line = f"exec {text}" if stays else text
            inside = ["ip", "netns", "exec", namespace(machine), "sh", "-ec", line]
            where = tmp_path / machine
            carry(tmp_path, text)
            if stays:
                with open(where / "log", "ab") as log:
                    background.append(subprocess.Popen(inside, cwd=where, env=environment, stdout=log, stderr=log))
                continue
            outputs[text.split()[1]] = run(inside, where, environment, patient="ping" in text)
        assert "images.npy[1]" in outputs["predict"]
        assert "rounds" in outputs["cost"]
        assert not list((tmp_path / "owner").rglob("party*/key.pem")), "a server's private key left its machine"
    finally:
        for process in background:
            process.terminate()
        for process in background:
            process.wait(20)


def run(inside: list[str], where: Path, environment: dict[str, str], patient: bool) -> str:
    """One command; `ping` is repeated until the servers have found each other."""
    deadline = time.monotonic() + 90
    while True:
        done = subprocess.run(inside, cwd=where, env=environment, capture_output=True, text=True, timeout=200)
        if done.returncode == 0:
            return done.stdout
        assert patient, (inside, done.stdout, done.stderr)
        assert time.monotonic() < deadline, (done.stdout, done.stderr)
        time.sleep(1)
