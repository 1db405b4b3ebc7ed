"""An operator's day: tokens, certificates and models change without a restart; kits, stores and bundles break."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509

from autorep.errors import ProtocolError
from autorep.modes import Program
from autorep.mpc.tls import client_context, make_keys, make_request, sign_request
from autorep.program.files import program_hash, split
from autorep.service.local import LocalDeployment, hold_ports
from autorep.service.shares import CONTENT_TYPE
from autorep.service.tokens import server_token, token_hash
from autorep.service.web import authority
from tests.service.conftest import small_program
from tests.service.test_faults import OPTIONS, Load, use_up
from tests.service.test_service import waiting


def wait_for(what: Callable[[], bool], hoped: str, seconds: float = 150.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {hoped}"
        time.sleep(0.1)


class Operated(LocalDeployment):
    """Servers with tokens and a folder of bundles; a dealer that is watched."""

    def __init__(self, program: Program, folder: Path) -> None:
        super().__init__(program, prepare=2, options=("--timeout", "60", "--half-expiry", "60"), folder=folder)
        self.token = secrets.token_urlsafe(16)
        self.models = folder / "models"

    def start(self, role: str) -> None:
        if not self.models.exists():
            shutil.copytree(self.folder / "bundle", self.models / "first")
            self.write_tokens({"alice": self.token})
            for name in ("certificate.pem", "key.pem"):
                shutil.copy(self.folder / "keys" / "party0" / name, self.folder / f"https-{name}")
        super().start(role)

    def write_tokens(self, tokens: dict[str, str]) -> None:
        for party in (0, 1):
            digests = {name: token_hash(server_token(token, party)) for name, token in tokens.items()}
            (self.folder / f"tokens{party}.json").write_text(json.dumps(digests))

    def hang_up(self) -> None:
        for role in ("party0", "party1"):
            self.processes[role].send_signal(signal.SIGHUP)

    def _arguments(self, role: str) -> list[str]:
        arguments = super()._arguments(role)
        if role == "dealer":
            return arguments
        place = arguments.index("--open")
        arguments[place : place + 1] = ["--tokens", str(self.folder / f"tokens{role[-1]}.json")]
        arguments[arguments.index("--bundle") + 1] = str(self.models)
        if role == "party0":
            https = [f"{self.folder}/https-{name}.pem" for name in ("certificate", "key")]
            arguments += ["--https-certificate", https[0], "--https-key", https[1]]
        return arguments


def test_tokens_certificates_and_models_change_while_queries_run(program: Program, tmp_path: Path) -> None:
    image = np.random.default_rng(0).random((1, 1, 8, 8))
    other = small_program(seed=7)
    first, second = program_hash(program), program_hash(other)
    with Operated(program, tmp_path) as deployment:
        make_keys(tmp_path / "spare", {"party0": ["127.0.0.1", "localhost"]})
        deployment.ca.write_bytes(deployment.ca.read_bytes() + (tmp_path / "spare" / "client" / "ca.pem").read_bytes())
        alice = {"token": deployment.token, "program": first, "patience": 0}
        with deployment.client(**alice) as client:
            client.predict(image)
            before = certificate(deployment.urls[0])
            with pytest.raises(ProtocolError, match="does not know the token"), deployment.client(token="bob's") as bob:
                bob.predict(image)
            split(other, deployment.models / "second")
            deployment.write_tokens({"alice": deployment.token, "bob": "bob's"})
            renew(deployment)
            deployment.hang_up()
            answered = 0
            with deployment.client(token="bob's", program=second) as bob:
                wait_for(lambda: serves(deployment, second), "both servers serve the second model")
                while answered < 5:
                    assert np.abs(client.logits(image) - program.run(image, "fixed")).max() < 1e-3
                    answered += 1
                assert np.abs(bob.logits(image) - other.run(image, "fixed")).max() < 1e-3
            wait_for(lambda: certificate(deployment.urls[0]) != before, "clients see the renewed certificate")
            shutil.rmtree(deployment.models / "first")
            deployment.hang_up()
            wait_for(lambda: not serves(deployment, first), "the first model is gone")
            with deployment.client(token="bob's") as bob:
                assert np.abs(bob.logits(image) - other.run(image, "fixed")).max() < 1e-3
        (deployment.folder / "tokens0.json").write_text("{broken")
        deployment.hang_up()
        wait_for(lambda: "not reloaded" in deployment.log("party0").read_text(), "the broken file is named")
        with deployment.client(token="bob's") as bob:
            bob.predict(image)
        assert all(process.poll() is None for process in deployment.processes.values())


def serves(deployment: LocalDeployment, program: str) -> bool:
    with httpx.Client(verify=authority(deployment.ca)) as web:
        states = [web.get(f"{url}/readyz/{program}").status_code for url in deployment.urls]
    return states == [200, 200]


def certificate(url: str) -> str:
    address = httpx.URL(url)
    return ssl.get_server_certificate((address.host, address.port or 443))


def renew(deployment: LocalDeployment) -> None:
    """Another certificate for clients, in the files named by --https-certificate and --https-key."""
    for name in ("certificate.pem", "key.pem"):
        shutil.copy(deployment.folder / "spare" / "party0" / name, deployment.folder / f"https-{name}")


def test_links_show_renewed_certificates_without_a_restart(program: Program, tmp_path: Path) -> None:
    image = np.random.default_rng(0).random((1, 1, 8, 8))
    with LocalDeployment(program, prepare=2, options=OPTIONS, folder=tmp_path) as deployment:
        ends = {"party0": (deployment._peer, "party1"), "dealer": (deployment._supply, "party1")}
        before = {role: serial_number(deployment, role, *end) for role, end in ends.items()}
        for role in ("party0", "party1", "dealer"):
            fresh, keys = tmp_path / "fresh" / role, tmp_path / "keys"
            make_request(fresh, role, ["127.0.0.1", "localhost"])
            sign_request(keys / "ca", fresh / "request.pem", role, fresh)
            for name in ("certificate.pem", "key.pem", "ca.pem"):
                shutil.copy(fresh / name, keys / role / name)
            deployment.processes[role].send_signal(signal.SIGHUP)
        for role, end in ends.items():
            renewed = x509.load_pem_x509_certificate((tmp_path / "keys" / role / "certificate.pem").read_bytes())
            wait_for(
                lambda role=role, end=end, s=renewed.serial_number: serial_number(deployment, role, *end) == s,
                f"{role} shows its renewed certificate",
            )
            assert renewed.serial_number != before[role]
        with Load(deployment, program, clients=1) as load:
            for role in ("party1", "dealer"):  # both dial, or are dialled, anew: with the new certificates
                deployment.kill(role)
                deployment.start(role)
                load.wait_answers(40)
        with deployment.client() as client:
            assert np.abs(client.logits(image) - program.run(image, "fixed")).max() < 1e-3


def serial_number(deployment: LocalDeployment, role: str, address: str, caller: str) -> int:
    """Of the certificate that a role shows to the servers that dial it."""
    host, _, port = address.rpartition(":")
    context = client_context(deployment.folder / "keys" / caller)
    with socket.create_connection((host, int(port)), 60.0) as raw:
        certificate = context.wrap_socket(raw, server_hostname=role).getpeercert() or {}
    return int(str(certificate["serialNumber"]), 16)


def test_kit_with_a_flipped_bit_gives_no_wrong_answer(program: Program, tmp_path: Path) -> None:
    with LocalDeployment(program, prepare=28, options=OPTIONS, folder=tmp_path) as deployment:
        deployment.kill("dealer")  # so that the kits on disk are used: more are prepared than memory holds
        for role in ("party0", "party1"):
            for kit in (tmp_path / f"store{role[-1]}").glob("*/ready/*"):
                try:
                    data = bytearray(kit.read_bytes())
                    data[len(data) // 2] ^= 1
                    kit.write_bytes(data)
                except OSError:  # taken meanwhile
                    continue

        def noticed() -> bool:
            use_up(deployment)
            return "altered or damaged" in deployment.log("party0").read_text()

        wait_for(noticed, "party 0 notices that its kits were altered")
        deployment.start("dealer")
        with Load(deployment, program, clients=2) as load:  # checks every answer
            load.wait_answers(30)
        web = httpx.Client(verify=authority(deployment.ca))
        assert all(web.get(f"{url}/healthz").status_code == 200 for url in deployment.urls)
        web.close()


def test_deleted_store_and_broken_bundle_are_survived(program: Program, tmp_path: Path) -> None:
    with LocalDeployment(program, prepare=2, options=OPTIONS, folder=tmp_path) as deployment:
        (store,) = (tmp_path / "store1").glob("*")
        shares = tmp_path / "bundle" / "party1" / "shares.safetensors"
        good = shares.read_bytes() if shares.exists() else None
        with Load(deployment, program, clients=1) as load:
            deployment.kill("dealer")
            for kit in (store / "ready").iterdir():
                kit.unlink(missing_ok=True)
            use_up(deployment)
            deployment.start("dealer")
            load.wait_answers(20)
            if good is not None:
                shares.write_bytes(b"")
                deployment.kill("party0")
                deployment.start("party0")
                time.sleep(3)
                shares.write_bytes(good)
            load.wait_answers(10)
        assert all(process.poll() is None for process in deployment.processes.values())


def test_port_in_use_is_named_for_what_it_is(program: Program, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for party, option, word in ((0, "--listen", "for clients"), (0, "--peer", "for servers")):

            class Clash(LocalDeployment):
                def _arguments(self, role: str, party: int = party, option: str = option) -> list[str]:
                    arguments = super()._arguments(role)
                    if role == f"party{party}":
                        arguments[arguments.index(option) + 1] = address
                    return arguments

            deployment = Clash(program, folder=tmp_path / word)
            with pytest.raises(ProtocolError, match=f"cannot listen {word} at {address}"):
                deployment.__enter__()


def test_several_images_refused_for_their_rate_at_one_server_end_at_the_other_at_once(program: Program) -> None:
    path = f"/v1/programs/{program_hash(program)}/queries"
    options = ("--half-expiry", "200", "--rate", "0.01", "--burst", "4")
    with LocalDeployment(program, prepare=2, options=options) as deployment, ExitStack() as stack:
        web = [
            stack.enter_context(
                httpx.Client(
                    base_url=url, verify=authority(deployment.ca), timeout=250, headers={"Content-Type": CONTENT_TYPE}
                )
            )
            for url in deployment.urls
        ]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        first = f"{path}/{secrets.token_hex(16)}"
        spent = pool.submit(web[0].post, first, content=bytes(2 * 512))
        query = f"{path}/{secrets.token_hex(16)}"
        half = pool.submit(web[1].post, query, content=bytes(3 * 512))
        wait_for(lambda: waiting(web[0]) == 2 and waiting(web[1]) == 3, "both halves are there", 100)
        refused = web[0].post(query, content=bytes(3 * 512))
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 50
        assert half.result().status_code == 429, "told at once, long before it would expire"
        web[0].delete(first)
        assert spent.result().status_code == 424


def test_dealer_shows_its_health_and_figures(program: Program, tmp_path: Path) -> None:
    (held,) = hold_ports(1)
    port = held.getsockname()[1]

    class Watched(LocalDeployment):
        def _arguments(self, role: str) -> list[str]:
            more = ["--watch", f"127.0.0.1:{port}"] if role == "dealer" else []
            return super()._arguments(role) + more

    with held, Watched(program, prepare=2, folder=tmp_path), httpx.Client(base_url=f"http://127.0.0.1:{port}") as web:
        assert web.get("/healthz").status_code == 200
        text = web.get("/metrics").text
    assert 'autorep_dealer_servers{role="party1"} 1.0' in text
    assert "autorep_certificate_expiry_seconds" in text
    assert "process_resident_memory_bytes" in text


def test_servers_compute_with_one_thread_unless_told() -> None:
    code = (
        "import os, sys; from autorep.cli.serve import use_threads; early = 'numpy' not in sys.modules; "
        "use_threads(1); from autorep import _native; "
        "print(early, os.environ['OMP_NUM_THREADS'], _native.get_threads())"
    )
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "1", "1"]
