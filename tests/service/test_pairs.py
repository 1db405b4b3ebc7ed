"""Two pairs behind nginx, one balancer an operator, configured as docs/deploy.md says; a pair dies, nothing is lost."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from autorep.modes import Program
from autorep.service.client import Client
from autorep.service.local import LocalDeployment, hold_ports
from autorep.service.web import authority

DOCUMENT = Path(__file__).parents[2] / "docs" / "deploy.md"
NGINX = shutil.which("nginx")


def configuration(index: int, port: int, pairs: list[LocalDeployment], folder: Path) -> str:
    """The document's example for one operator, with this test's addresses, two pairs and files in it."""
    (text,) = re.findall(r"^```nginx\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for address, pair in zip(("10.77.0.1:8440", "10.77.1.1:8440"), pairs):
        assert address in text
        text = text.replace(address, pair.urls[index].removeprefix("https://"))
    text = re.sub(r"^.*10\.77\.2\.1:8440.*\n", "", text, flags=re.MULTILINE)  # two pairs are enough here
    text = re.sub(r"^ *c +pair_c;\n", "", text, flags=re.MULTILINE)
    for found, here in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/autorep/ca.pem", str(folder / "ca.pem")),
        ("/etc/autorep/https.pem", str(pairs[0].folder / "keys" / f"party{index}" / "certificate.pem")),
        ("/etc/autorep/https.key", str(pairs[0].folder / "keys" / f"party{index}" / "key.pem")),
        ("party0", f"party{index}"),
    ):
        assert found in text, found
        text = text.replace(found, here)
    return f"daemon off; pid {folder}/{index}.pid; error_log stderr; events {{}} http {{ access_log off;\n{text}\n}}\n"


@contextmanager
def balancers(pairs: list[LocalDeployment], folder: Path) -> Iterator[list[str]]:
    """One nginx for each operator."""
    authorities = b"".join(pair.ca.read_bytes() for pair in pairs)
    (folder / "ca.pem").write_bytes(authorities)
    held, processes = hold_ports(2), []
    ports = [each.getsockname()[1] for each in held]
    for index, port in enumerate(ports):
        path = folder / f"nginx{index}.conf"
        path.write_text(configuration(index, port, pairs, folder))
        with open(folder / f"nginx{index}.log", "wb") as log:
            command = [str(NGINX), "-p", str(folder), "-c", str(path)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
    urls = [f"https://127.0.0.1:{port}" for port in ports]
    try:
        with httpx.Client(verify=authority(folder / "ca.pem")) as web:
            deadline = time.monotonic() + 100
            while not all(_answers(web, url) for url in urls):
                assert time.monotonic() < deadline, (folder / "nginx0.log").read_text()
                time.sleep(0.1)
        yield urls
    finally:
        for process in processes:
            process.terminate()
            process.wait(100)
        for each in held:
            each.close()


def _answers(web: httpx.Client, url: str) -> bool:
    try:
        return web.get(f"{url}/v1/deployment").status_code == 200
    except httpx.HTTPError:
        return False


@pytest.mark.skipif(NGINX is None, reason="needs nginx (apt-get install nginx)")
def test_pair_that_dies_behind_balancers_loses_nothing(program: Program, tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((8, 1, 8, 8))
    expected = program.run(images, "fixed")
    with ExitStack() as stack:
        pairs = []
        for name in "ab":
            (tmp_path / name).mkdir()
            options = ("--pair", name, "--half-expiry", "2", "--timeout", "6")
            pairs.append(stack.enter_context(LocalDeployment(program, 4, options=options, folder=tmp_path / name)))
        urls = stack.enter_context(balancers(pairs, tmp_path))
        answers: list[np.ndarray] = []
        failures: list[BaseException] = []
        over = threading.Event()

        def ask() -> None:
            try:
                with Client(urls, ca=tmp_path / "ca.pem", patience=60) as client:
                    while not over.is_set():
                        answers.append(client.logits(images) - expected)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_more(answers, 3, failures)
        pairs[0].kill("party0")
        wait_more(answers, 6, failures)
        pairs[0].kill("party1")
        wait_more(answers, 6, failures)
        over.set()
        for thread in threads:
            thread.join(200)
        assert not failures, failures
        assert max(np.abs(difference).max() for difference in answers) < 1e-3
        used = [sum('"running"' in line for line in pair.log("party0").read_text().splitlines()) for pair in pairs]
        assert min(used) > 0, "both pairs worked"


def wait_more(answers: list[np.ndarray], count: int, failures: list[BaseException]) -> None:
    goal, deadline = len(answers) + count, time.monotonic() + 90
    while len(answers) < goal:
        assert not failures, failures
        assert time.monotonic() < deadline, f"{len(answers)} answers came, {goal} are waited for"
        time.sleep(0.05)
