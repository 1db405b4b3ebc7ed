"""Keys, material prepared ahead, tokens, rates and ping."""

from __future__ import annotations

import hashlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from autorep import models
from autorep.cli.main import main
from autorep.cli.predict import load_images, local_program
from autorep.errors import DataError, HandshakeError, ProtocolError
from autorep.modes import Program
from autorep.program.files import load_public, program_hash, save, split
from autorep.service.client import Client
from autorep.service.local import LocalDeployment, hold_ports
from autorep.service.shares import CONTENT_TYPE, new_query_id
from autorep.service.tokens import server_token
from autorep.training.saved import save_model

from .conftest import small_program


@pytest.fixture(scope="module")
def prepared(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """Two servers without a dealer, with tokens and a rate; two programs, six prepared inferences of each."""
    folder = tmp_path_factory.mktemp("prepared")
    split(program, folder / "bundle")
    split(small_program(5, "another one"), folder / "second")
    assert main(["keys", "--out", str(folder / "keys"), "--clients", "alice", "bob", "carol"]) == 0
    for bundle in ("bundle", "second"):
        arguments = ["prepare", "--bundle", str(folder / bundle), "--out", str(folder / "material"), "--count", "6"]
        assert main([*arguments, "--json", str(folder / "prepare.json")]) == 0
    for party in ("party0", "party1"):
        material, store = str(folder / "material" / party), str(folder / "store" / party)
        assert main(["import", material, "--store", store, "--begin"]) == 0
    held = hold_ports(3)
    *ports, peer = (each.getsockname()[1] for each in held)
    processes = []
    for party in (0, 1):
        command = [
            sys.executable, "-m", "autorep.cli.main", "serve", "--party", str(party),
            "--bundle", str(folder / "bundle"), str(folder / "second"),
            "--keys", str(folder / "keys" / f"party{party}"),
            "--store", str(folder / "store" / f"party{party}"), "--listen", f"127.0.0.1:{ports[party]}",
            "--peer", f"127.0.0.1:{peer}", "--rate", "2", "--burst", "4", "--half-expiry", "3",
            "--per-client", "2",
        ]  # fmt: skip
        with open(folder / f"party{party}.log", "wb") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
    urls = [f"https://127.0.0.1:{port}" for port in ports]
    context = ssl.create_default_context(cafile=str(folder / "keys" / "client" / "ca.pem"))
    try:
        with httpx.Client(verify=context) as web:
            deadline = time.monotonic() + 150
            while not _ready(web, urls):
                assert time.monotonic() < deadline, (folder / "party0.log").read_text()
                time.sleep(0.1)
        yield folder, [*urls, f"127.0.0.1:{peer}"]
    finally:
        for process in processes:
            process.terminate()
            process.wait(100)
        for each in held:
            each.close()


def _ready(web: httpx.Client, urls: list[str]) -> bool:
    try:
        return all(web.get(f"{url}/readyz").status_code == 200 for url in urls)
    except httpx.HTTPError:
        return False


def test_prepare_writes_what_it_says(prepared: tuple[Path, list[str]]) -> None:
    folder, _ = prepared
    facts = json.loads((folder / "prepare.json").read_text())
    assert facts["count"] == 6
    assert facts["bytes_party1"] > facts["bytes_party0"] > 0


def test_requests_without_a_valid_token_are_refused(prepared: tuple[Path, list[str]]) -> None:
    folder, (url, *_) = prepared
    context = ssl.create_default_context(cafile=str(folder / "keys" / "client" / "ca.pem"))
    with httpx.Client(base_url=url, verify=context) as web:
        program = web.get("/v1/programs").json()["programs"][0]["program"]
        path = f"/v1/programs/{program}/queries/{new_query_id()}"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic YWxpY2U6"}):
            answer = web.post(path, content=bytes(512), headers={"Content-Type": CONTENT_TYPE, **headers})
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
    stored = (folder / "keys" / "party0" / "tokens.json").read_text()
    token = (folder / "keys" / "client" / "alice.token").read_text().strip()
    assert token not in stored
    assert hashlib.sha256(server_token(token, 0).encode()).hexdigest() in stored


def test_ping_says_what_is_wrong(
    prepared: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (first, second, peer) = prepared
    keys, bundle = folder / "keys", str(folder / "bundle")

    def ping(*arguments: str, timeout: str = "100") -> dict[str, str]:
        capsys.readouterr()
        code = main(["ping", *arguments, "--json", "-", "--timeout", timeout])
        links = json.loads(capsys.readouterr().out)["links"]
        assert code == (0 if all(link["ok"] for link in links) else 1)
        return {link["name"].split()[0]: link["kind"] for link in links}

    client = ["--keys", str(keys / "client"), "--servers"]
    assert ping(*client, first, second, "--bundle", bundle) == {"server": "ok"}
    assert ping("--keys", str(keys / "party1"), "--peer", peer, "--bundle", bundle) == {"peer": "ok"}
    (nobody,) = hold_ports(1)
    with nobody:
        refused = f"127.0.0.1:{nobody.getsockname()[1]}"
        assert ping("--keys", str(keys / "party1"), "--dealer", refused) == {"dealer": "refused"}
    assert ping("--keys", str(keys / "party1"), "--dealer", peer) == {"dealer": "certificate"}
    main(["keys", "--out", str(tmp_path / "other")])
    assert ping("--keys", str(tmp_path / "other" / "client"), "--servers", first, second) == {"server": "certificate"}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert ping("--keys", str(keys / "party0"), "--dealer", address, timeout="1") == {"dealer": "timeout"}


def test_ping_notices_a_different_program(
    prepared: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, (first, second, peer) = prepared
    split(small_program(seed=9), tmp_path)
    capsys.readouterr()
    arguments = ["--bundle", str(tmp_path), "--json", "-"]
    assert main(["ping", "--keys", str(folder / "keys" / "party1"), "--peer", peer, *arguments]) == 1
    assert json.loads(capsys.readouterr().out)["links"][0]["kind"] == "program"
    assert main(["ping", "--keys", str(folder / "keys" / "client"), "--servers", first, second, *arguments]) == 1
    assert json.loads(capsys.readouterr().out)["links"][0]["kind"] == "program"


def test_rate_and_exhausted_material_are_refused_with_a_delay(
    prepared: tuple[Path, list[str]], program: Program
) -> None:
    folder, (first, second, _) = prepared
    bob, alice = ((folder / "keys" / "client" / f"{name}.token").read_text().strip() for name in ("bob", "alice"))
    ca = folder / "keys" / "client" / "ca.pem"
    images = np.random.default_rng(3).random((6, 1, 8, 8))
    started = time.monotonic()
    with Client([first, second], token=bob, ca=ca, patience=20, program=program_hash(program)) as client:
        assert np.abs(client.logits(images) - program.run(images, "fixed")).max() < 1e-3
    assert time.monotonic() - started > 0.8  # two a second after a burst of four
    with (
        Client([first, second], token=alice, ca=ca, patience=0, program=program_hash(program)) as client,
        pytest.raises(ProtocolError, match="no correlated randomness is left"),
    ):
        client.predict(images[:1])


def test_two_programs_are_served_side_by_side(prepared: tuple[Path, list[str]]) -> None:
    folder, (first, second, _) = prepared
    token = (folder / "keys" / "client" / "alice.token").read_text().strip()
    options = {"token": token, "ca": folder / "keys" / "client" / "ca.pem"}
    image = np.random.default_rng(8).random((1, 1, 8, 8))
    other = load_public(folder / "second" / "public")
    with Client([first, second], **options, program=program_hash(other)[:12]) as client:
        expected = small_program(seed=5).run(image, "fixed")
        assert np.abs(client.logits(image) - expected).max() < 1e-3
    named = r"which program\?.*'another one' \(\w{8}…\).*'small' \(\w{8}…\)|'small' .*'another one' .*--program"
    for wanted in (None, "third"):
        with (
            Client([first, second], **options, program=wanted) as client,
            pytest.raises(HandshakeError, match=named),
        ):
            client.predict(image)
    for wanted in ("another one", "Another"):
        with Client([first, second], **options, program=wanted) as client:
            assert client.description.program == program_hash(other)


def test_a_missing_or_unknown_token_says_what_to_give(prepared: tuple[Path, list[str]]) -> None:
    folder, (first, second, _) = prepared
    options = {"ca": folder / "keys" / "client" / "ca.pem", "program": "small"}
    image = np.zeros((1, 1, 8, 8))
    with Client([first, second], **options) as client, pytest.raises(ProtocolError, match="--token-file FILE"):
        client.predict(image)
    with Client([first, second], **options, token="0" * 43) as client, pytest.raises(ProtocolError) as refused:
        client.predict(image)
    assert "does not know the token" in str(refused.value)
    assert "0" * 43 not in str(refused.value)


def test_one_client_cannot_fill_the_queue(prepared: tuple[Path, list[str]]) -> None:
    folder, (first, *_) = prepared
    token = (folder / "keys" / "client" / "carol.token").read_text().strip()
    headers = {"Content-Type": CONTENT_TYPE, "Authorization": f"Bearer {server_token(token, 0)}"}
    context = ssl.create_default_context(cafile=str(folder / "keys" / "client" / "ca.pem"))
    with httpx.Client(base_url=first, verify=context) as web, ThreadPoolExecutor(3) as pool:
        other = program_hash(load_public(folder / "second" / "public"))
        paths = [f"/v1/programs/{other}/queries/{new_query_id()}" for _ in range(3)]
        answers = list(pool.map(lambda path: web.post(path, content=bytes(512), headers=headers), paths))
    assert sorted(answer.status_code for answer in answers) == [424, 424, 429]


def test_predict_reads_arrays_and_pictures_where_the_owner_says_how(
    deployment: LocalDeployment, program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (3, 1, 8, 8), np.uint8)
    np.save(tmp_path / "some.npy", pixels)
    (tmp_path / "folder").mkdir()
    Image.fromarray(pixels[0, 0]).save(tmp_path / "folder" / "one.png")
    capsys.readouterr()
    servers = ["--servers", *deployment.urls, "--ca", str(deployment.ca), "--json", "-"]
    assert main(["predict", str(tmp_path / "some.npy"), *servers]) == 0
    answers = json.loads(capsys.readouterr().out)["predictions"]
    assert [answer["image"] for answer in answers] == ["some.npy[0]", "some.npy[1]", "some.npy[2]"]
    found = np.array([answer["logits"] for answer in answers])
    assert np.abs(found - program.run(pixels / 255, "fixed")).max() < 1e-3
    names, batch = load_images([tmp_path / "folder"], (1, 8, 8), {"mean": [0.5]})
    assert names == ["one.png"]
    np.testing.assert_allclose(batch[0], pixels[0] / 255)
    assert main(["predict", str(tmp_path / "folder"), *servers]) == 2  # its owner says nothing of pictures
    assert "does not say how a picture becomes its input" in capsys.readouterr().err
    with pytest.raises(DataError, match="takes"):
        load_images([tmp_path / "some.npy"], (3, 8, 8))
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"broken\.png"):
        load_images([tmp_path / "broken.png"], (1, 8, 8), {"mean": [0.5]})


def test_predict_refuses_images_out_of_range(
    deployment: LocalDeployment, images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "far.npy", np.stack([images[0], 20 * images[0]]))
    arguments = [str(tmp_path / "far.npy"), "--servers", *deployment.urls, "--ca", str(deployment.ca)]
    assert main(["predict", *arguments]) == 2
    assert "outside the range" in capsys.readouterr().err


def test_predict_runs_a_saved_program_on_this_machine(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(program, tmp_path / "program")
    np.save(tmp_path / "one.npy", np.zeros((1, 1, 8, 8)))
    capsys.readouterr()
    arguments = ["predict", str(tmp_path / "one.npy"), "--model", str(tmp_path / "program"), "--json", "-"]
    assert main(arguments) == 0
    (answer,) = json.loads(capsys.readouterr().out)["predictions"]
    assert np.abs(np.array(answer["logits"]) - program.run(np.zeros((1, 1, 8, 8)), "fixed")[0]).max() < 1e-3


def test_predict_compiles_a_saved_model_on_the_images_it_gets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = models.create("digits_net")
    model(torch.randn(64, 1, 8, 8))
    facts = {
        "model": "digits_net", "num_classes": 10, "input_shape": [1, 8, 8], "mean": [0.3], "std": [0.4],
        "classes": [f"class {i}" for i in range(10)], "data": "digits",
    }  # fmt: skip
    save_model(tmp_path / "model", model.eval(), facts)
    images = np.random.default_rng(0).random((3, 1, 8, 8))
    np.save(tmp_path / "images.npy", images)
    program, names, batch = local_program(str(tmp_path / "model.json"), [tmp_path / "images.npy"])
    assert len(names) == len(batch) == 3
    assert program.info["class_names"][3] == "class 3"
    with torch.no_grad():
        expected = model((torch.from_numpy(images).float() - 0.3) / 0.4).numpy()
    assert np.abs(program.run(images, "float") - expected).max() < 1e-4


def test_wrong_settings_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "x.png"]) == 2
    assert "--servers" in capsys.readouterr().err
    assert main(["ping", "--keys", str(tmp_path)]) == 2
    assert "nothing to check" in capsys.readouterr().err
    assert main(["dealer", "--keys", str(tmp_path), "--listen", "nowhere"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err
    (tmp_path / "keys" / "ca").mkdir(parents=True)
    (tmp_path / "keys" / "ca" / "key.pem").write_text("")
    assert main(["keys", "--out", str(tmp_path / "keys")]) == 2
    assert "already" in capsys.readouterr().err
