"""deploy/: the services of compose.yaml, run by their own commands as processes with only what is mounted.

No container engine is needed: each service gets a folder that holds its mounts and nothing else, and an address of the
loopback network that is its own.
"""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from autorep.cli.main import main
from autorep.modes import Program
from autorep.program.files import split
from autorep.service.client import Client

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
INSIDE = "/var/lib/autorep"
NUMBER, LAST = divmod(os.getpid(), 60)  # addresses that no other process of tests has
OWN = f"127.{100 + NUMBER // 250 % 150}.{NUMBER % 250}"
MACHINES = {name: f"{OWN}.{4 * LAST + place}" for place, name in enumerate(("SERVER0", "SERVER1", "DEALER"), 1)}
MACHINES["OWNER"] = "1000:1000"


def services() -> dict[str, Any]:
    """As compose reads the file: merged, with the variables filled in."""
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"\$\{(\w+)\}", lambda found: MACHINES[found[1]], text))["services"]


def furnish(folder: Path, service: dict[str, Any], owner: Path) -> None:
    """A machine's folder: every mount, read-only ones as copies without write permission."""
    folder.mkdir()
    for mount in service["volumes"]:
        source, target, *mode = mount.split(":")
        assert target == f"{INSIDE}/{source.removeprefix('./')}", "the same relative paths inside and outside"
        inside = folder / source
        if mode == ["ro"]:
            shutil.copytree(owner / source, inside)
        else:
            inside.mkdir()


def test_every_role_keeps_to_itself() -> None:
    found = services()
    assert set(found) == {"dealer", "server0", "server1"}
    for name, service in found.items():
        assert service["profiles"] == [name]
        assert service["user"] == MACHINES["OWNER"]
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        keys = [mount for mount in service["volumes"] if "keys" in mount]
        assert len(keys) == 1, "no machine holds another role's key"
        assert ("model/party1" in str(service["volumes"])) == (name == "server1")
        assert ("model/party0" in str(service["volumes"])) == (name == "server0")


def test_the_image_is_made_from_what_is_there() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.M) for word in line.split()[:-1]]
    assert copied
    assert all((DEPLOY.parent / word).exists() for word in copied)
    needed = re.findall(r'^(?:readme = "(.*?)"|license-files = \["(.*?)"\])', _project(), re.M)
    assert {word for pair in needed for word in pair if word} <= set(copied)
    assert re.search(rf"^WORKDIR {INSIDE}$", text, re.M)
    assert 'ENTRYPOINT ["autorep"]' in text


def _project() -> str:
    return (DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8")


def test_the_services_answer_together(program: Program, tmp_path: Path) -> None:
    owner = tmp_path / "owner"
    hosts = [f"--party{party}-host {MACHINES[f'SERVER{party}']}" for party in (0, 1)]
    options = " ".join([*hosts, f"--dealer-host {MACHINES['DEALER']} --clients alice"])
    assert main(["keys", "--out", str(owner / "keys"), *options.split()]) == 0
    split(program, owner / "model")
    processes, logs = [], {}
    try:
        for name, service in services().items():
            furnish(tmp_path / name, service, owner)
            logs[name] = tmp_path / f"{name}.log"
            with logs[name].open("wb") as log:
                line = [sys.executable, "-m", "autorep.cli.main", *service["command"]]
                processes.append(subprocess.Popen(line, cwd=tmp_path / name, stdout=log, stderr=log))
        urls = [f"https://{MACHINES[f'SERVER{party}']}:8440" for party in (0, 1)]
        wait_until_ready(urls, owner / "keys" / "client" / "ca.pem", logs)
        for name in ("server0", "server1"):
            service = services()[name]
            command = [sys.executable, *service["healthcheck"]["test"][2:]]
            assert service["healthcheck"]["test"][1] == "python"
            subprocess.run(command, env={**os.environ, **service["environment"]}, check=True)
        token = (owner / "keys" / "client" / "alice.token").read_text().strip()
        image = np.random.default_rng(0).random((1, 1, 8, 8))
        with Client(urls, token=token, ca=owner / "keys" / "client" / "ca.pem") as client:
            assert np.abs(client.logits(image) - program.run(image, "fixed")).max() < 1e-3
    finally:
        for process in processes:
            process.terminate()
        ended = [process.wait(30) for process in processes]
    assert ended == [0, 0, 0]


def wait_until_ready(urls: list[str], ca: Path, logs: dict[str, Path]) -> None:
    deadline = time.monotonic() + 200
    with httpx.Client(verify=ssl.create_default_context(cafile=str(ca))) as web:
        while True:
            try:
                if all(web.get(f"{url}/readyz").status_code == 200 for url in urls):
                    return
            except httpx.HTTPError:
                pass
            assert time.monotonic() < deadline, {name: log.read_text()[-2000:] for name, log in logs.items()}
            time.sleep(0.2)
