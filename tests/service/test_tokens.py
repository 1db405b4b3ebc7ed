"""Client tokens: one secret a client, another token for each server, nothing in clear."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from autorep.cli.main import main
from autorep.errors import ConfigError
from autorep.service.api import Api, ApiSettings
from autorep.service.client import Client
from autorep.service.metrics import Metrics
from autorep.service.ping import Links, check_links
from autorep.service.tokens import new_secret, read_secret, server_token, token_hash

SHARES_JS = Path(__file__).parents[2] / "src" / "autorep" / "service" / "page" / "shares.js"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    assert main(["keys", "--out", str(tmp_path / "keys"), "--clients", "alice", "bob"]) == 0
    return tmp_path / "keys"


def accepted(keys: Path, party: int, token: str) -> bool:
    """Whether a server with this party's token file lets a token pass."""
    app = Api(party, {}, Metrics(), ApiSettings(keys / f"party{party}" / "tokens.json")).app()

    async def ask() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://server") as web:
            path = f"/v1/programs/none/queries/{'0' * 32}"
            return (await web.post(path, headers={"Authorization": f"Bearer {token}"})).status_code

    return asyncio.run(ask()) != 401


def test_a_server_cannot_speak_for_a_client_to_the_other(keys: Path) -> None:
    secret = read_secret(keys / "client" / "alice.token")
    assert secret is not None
    for party in (0, 1):
        seen = server_token(secret, party)
        assert accepted(keys, party, seen)
        assert not accepted(keys, 1 - party, seen)
        assert not accepted(keys, party, secret)
    held = [json.loads((keys / f"party{party}" / "tokens.json").read_text()) for party in (0, 1)]
    assert held[0].keys() == held[1].keys() == {"alice", "bob"}
    digests = [digest for names in held for digest in names.values()]
    assert len(set(digests)) == 4
    assert not any(accepted(keys, party, digest) for party in (0, 1) for digest in digests)


@pytest.mark.parametrize("command", ["openssl", "node"])
def test_other_programs_derive_the_same_token(command: str, tmp_path: Path) -> None:
    if shutil.which(command) is None:
        pytest.skip(f"no {command} here")
    secret = new_secret()
    if command == "openssl":
        arguments = ["openssl", "dgst", "-sha256", "-hmac", secret]
        done = subprocess.run(arguments, input=b"autorep server 1", capture_output=True, check=True)
        found = done.stdout.decode().split()[-1]
    else:
        shutil.copy(SHARES_JS, tmp_path / "shares.mjs")
        script = f'import("./shares.mjs").then(async (m) => console.log(await m.serverToken("{secret}", 1)))'
        done = subprocess.run(["node", "-e", script], cwd=tmp_path, capture_output=True, check=True)
        found = done.stdout.decode().strip()
    assert found == server_token(secret, 1)


def test_a_server_keeps_only_a_hash() -> None:
    token = server_token("secret", 0)
    assert token_hash(token) == hashlib.sha256(token.encode()).hexdigest()
    assert token != server_token("secret", 1) != server_token("other", 1)


def test_a_token_file_that_is_missing_or_empty_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_secret(tmp_path / "none.token")
    (tmp_path / "empty.token").write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        read_secret(tmp_path / "empty.token")
    assert read_secret(None) is None


def test_addresses_in_clear_are_refused(tmp_path: Path, keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    urls = ("https://one:1", "http://two:2")
    with pytest.raises(ConfigError, match="never sent in clear"):
        Client(urls)
    with pytest.raises(ConfigError, match="https"):
        check_links(keys / "client", Links(urls), None, 1)
    arguments = ["--bundle", "b", "--store", "s", "--keys", str(keys / "party0"), "--urls", *urls]
    assert main(["serve", "--party", "0", *arguments]) == 2
    assert "https://" in capsys.readouterr().err
