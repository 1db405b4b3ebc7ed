"""Certificates: each role makes its own key, the authority signs for one role, nobody passes for another."""

from __future__ import annotations

import socket
import threading

import pytest
from cryptography import x509

from autorep.cli.main import main
from autorep.errors import AutorepError, ConfigError
from autorep.mpc.tls import (
    client_context,
    make_authority,
    make_keys,
    make_request,
    server_context,
    sign_request,
)
from autorep.mpc.transport_tcp import accept, connect


def link(server, client, role: str, accepted: set[str]) -> str:
    """Connect two roles over loopback; returns the role the accepting end saw."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[object] = []

    def serve() -> None:
        try:
            transport = accept(listener.accept()[0], server_context(server), accepted, 60)
            seen.append(transport.peer)
            transport.receive("end")
        except AutorepError as error:
            seen.append(error)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        transport = connect("127.0.0.1", listener.getsockname()[1], client_context(client), role, 60, 60)
        transport.send("end", b"")
        transport.close()
    finally:
        thread.join(120)
        listener.close()
    (result,) = seen
    if isinstance(result, Exception):
        raise result
    return str(result)


def test_roles_that_made_their_own_keys_meet(tmp_path):
    make_authority(tmp_path / "ca")
    for role in ("party0", "party1"):
        read_out = make_request(tmp_path / role, role, ["127.0.0.1", "example.org"])
        assert {path.name for path in (tmp_path / role).iterdir()} == {"key.pem", "request.pem"}
        signed, hosts = sign_request(
            tmp_path / "ca", tmp_path / role / "request.pem", role, tmp_path / f"signed-{role}"
        )
        assert signed == read_out, "the fingerprints an operator and the authority compare"
        assert hosts == ["127.0.0.1", "example.org"]
        assert {path.name for path in (tmp_path / f"signed-{role}").iterdir()} == {"certificate.pem", "ca.pem"}
        for path in (tmp_path / f"signed-{role}").iterdir():
            path.rename(tmp_path / role / path.name)
    assert link(tmp_path / "party0", tmp_path / "party1", "party0", {"party1"}) == "party1"


def test_the_authority_signs_only_the_role_it_is_told(tmp_path):
    make_authority(tmp_path / "ca")
    make_request(tmp_path / "mine", "party1", [])
    with pytest.raises(ConfigError, match="asks to be party1, not dealer"):
        sign_request(tmp_path / "ca", tmp_path / "mine" / "request.pem", "dealer", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("host", ["dealer", "Party0", "party1.", "*", "*.example.org", "a b", ""])
def test_hosts_with_names_of_roles_or_patterns_are_refused(tmp_path, host):
    with pytest.raises(ConfigError, match="host"):
        make_request(tmp_path / "role", "party0", [host])
    with pytest.raises(ConfigError, match="host"):
        make_keys(tmp_path / "keys", {"party0": [host]})


def test_a_request_that_smuggles_in_another_role_is_refused(tmp_path, monkeypatch):
    make_authority(tmp_path / "ca")
    with monkeypatch.context() as patch:  # a request made by other means than ours
        patch.setattr("autorep.mpc.tls._host", x509.DNSName)
        make_request(tmp_path / "role", "party0", ["dealer"])
    with pytest.raises(ConfigError, match="name of a role"):
        sign_request(tmp_path / "ca", tmp_path / "role" / "request.pem", "party0", tmp_path / "out")


def test_a_damaged_request_is_refused(tmp_path):
    make_authority(tmp_path / "ca")
    (tmp_path / "request.pem").write_text("-----BEGIN CERTIFICATE REQUEST-----\nnonsense\n")
    with pytest.raises(ConfigError, match="not a signing request"):
        sign_request(tmp_path / "ca", tmp_path / "request.pem", "party0", tmp_path / "out")
    make_request(tmp_path / "role", "party0", [])
    with pytest.raises(ConfigError, match="not a certificate authority"):
        sign_request(tmp_path / "role", tmp_path / "role" / "request.pem", "party0", tmp_path / "out")


def test_keys_are_never_overwritten(tmp_path):
    make_request(tmp_path / "role", "party0", [])
    with pytest.raises(ConfigError, match="a key already"):
        make_request(tmp_path / "role", "party0", [])
    make_authority(tmp_path / "ca")
    with pytest.raises(ConfigError, match="authority already"):
        make_authority(tmp_path / "ca")


def test_the_commands_do_the_same(tmp_path, capsys):
    keys, ca = tmp_path / "party0", tmp_path / "ca"
    assert main(["keys", "authority", "--out", str(ca)]) == 0
    assert main(["keys", "request", "--role", "party0", "--out", str(keys), "--host", "10.0.0.1"]) == 0
    fingerprint = capsys.readouterr().out.strip().splitlines()[-1]
    request = ["--request", str(keys / "request.pem"), "--role", "party0"]
    assert main(["keys", "sign", *request, "--authority", str(ca), "--out", str(keys)]) == 0
    shown = capsys.readouterr().out
    assert fingerprint in shown
    assert "10.0.0.1" in shown
    server_context(keys)
    assert main(["keys", "client", "--name", "alice", "--out", str(tmp_path / "client")]) == 0
    assert {path.name for path in (tmp_path / "client").iterdir()} == {
        "alice.token", "alice.party0.json", "alice.party1.json",
    }  # fmt: skip
    assert main(["keys", "--out", str(tmp_path / "all")]) == 0
    assert "on this machine" in capsys.readouterr().out


def test_every_file_is_private(tmp_path):
    assert main(["keys", "--out", str(tmp_path / "keys")]) == 0
    for path in (tmp_path / "keys").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
