"""Two servers that never had a dealer and make nothing while they serve: they prepare together, import and answer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from autorep.cli.main import main
from autorep.errors import ProtocolError
from autorep.modes import Program
from autorep.program.files import split
from autorep.service.client import Client
from autorep.service.local import hold_ports
from autorep.service.prepare_together import prepare_together


def prepare_both(folder: Path, count: int) -> None:
    """`autorep prepare` at both servers at once."""
    (held,) = hold_ports(1)
    processes = []
    for party in (0, 1):
        arguments = ["prepare", "--bundle", str(folder / "bundle"), "--out", str(folder / "material")]
        arguments += ["--count", str(count), "--preparation", "two-party", "--party", str(party)]
        arguments += ["--peer", f"127.0.0.1:{held.getsockname()[1]}", "--keys", str(folder / "keys" / f"party{party}")]
        arguments += ["--json", str(folder / f"prepared{party}.json")]
        command = [sys.executable, "-m", "autorep.cli.main", *arguments]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [process.communicate(timeout=250)[0] for process in processes]
    held.close()
    assert [process.returncode for process in processes] == [0, 0], said


def test_servers_without_any_dealer_answer(program: Program, images: np.ndarray, tmp_path: Path) -> None:
    split(program, tmp_path / "bundle")
    assert main(["keys", "--out", str(tmp_path / "keys")]) == 0
    prepare_both(tmp_path, 5)
    assert json.loads((tmp_path / "prepared0.json").read_text())["bytes_party0"] > 0
    for party in ("party0", "party1"):
        material, store = str(tmp_path / "material" / party), str(tmp_path / "store" / party)
        assert main(["import", material, "--store", store, "--begin", "True"]) == 0
    held, processes = hold_ports(3), []
    *ports, peer = (each.getsockname()[1] for each in held)
    try:
        for party in (0, 1):
            command = [
                sys.executable, "-m", "autorep.cli.main", "serve", "--party", str(party), "--preparation", "two-party",
                "--bundle", str(tmp_path / "bundle"), "--keys", str(tmp_path / "keys" / f"party{party}"),
                "--store", str(tmp_path / "store" / f"party{party}"), "--listen", f"127.0.0.1:{ports[party]}",
                "--peer", f"127.0.0.1:{peer}", "--open", "True", "--ahead", "0",
            ]  # fmt: skip
            with open(tmp_path / f"party{party}.log", "wb") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        urls = [f"https://127.0.0.1:{port}" for port in ports]
        with _client(urls, tmp_path) as client:
            found = np.concatenate([client.logits(images[i : i + 1]) for i in range(3)])
        assert np.abs(found - program.run(images[:3], "fixed")).max() < 1e-2
    finally:
        for process in processes:
            process.terminate()
            process.wait(100)
        for each in held:
            each.close()


def _client(urls: list[str], folder: Path) -> Client:
    """A client once both servers are up."""
    deadline = time.monotonic() + 150
    while True:
        try:
            client = Client(urls, ca=folder / "keys" / "client" / "ca.pem")
            client.logits(np.zeros((1, 1, 8, 8)))
            return client
        except Exception:
            assert time.monotonic() < deadline, (folder / "party0.log").read_text()
            time.sleep(0.5)


def test_missing_arguments_and_a_missing_partner_are_named(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split(program, tmp_path / "bundle")
    main(["keys", "--out", str(tmp_path / "keys")])
    arguments = ["prepare", "--bundle", str(tmp_path / "bundle"), "--out", str(tmp_path / "m")]
    assert main([*arguments, "--preparation", "two-party"]) != 0
    assert "needs --party" in capsys.readouterr().err
    (held,) = hold_ports(1)
    with held, pytest.raises(ProtocolError, match="party 1 did not dial"):
        prepare_together(
            tmp_path / "bundle", 0, held.getsockname(), tmp_path / "keys" / "party0", tmp_path / "m", 1, timeout=0.5
        )
