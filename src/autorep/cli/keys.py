"""`autorep keys`: who may be which role, and which clients may ask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autorep import private
from autorep.cli.main import dispatch, usage
from autorep.settings import parse, require

COMMANDS: dict[str, tuple[str, str, str]] = {
    "authority": ("autorep.cli.keys", "Authority", "make a certificate authority, on a machine of its own"),
    "request": ("autorep.cli.keys", "Request", "make a role's key and a request to sign it, on the role's machine"),
    "sign": ("autorep.cli.keys", "Sign", "sign a role's request, where the authority is"),
    "client": ("autorep.cli.keys", "NewClient", "make a client's token, and its hash for each server"),
}


def main(prog: str, arguments: Sequence[str]) -> int:
    """One of the commands above, or everything at once for a single machine."""
    if arguments and not arguments[0].startswith("-"):
        return dispatch("Keys of a deployment.", {"commands": COMMANDS}, prog, arguments)
    if arguments and arguments[0] in ("-h", "--help"):
        title = "Keys of a deployment; without a command, all of them on this machine."
        print(usage(title, {"commands": COMMANDS}, prog), "\n")
    return parse(Keys, arguments, prog).run()


@dataclass(frozen=True)
class Keys:
    """Make an authority, every role's key and certificate, and client tokens, all on this machine.

    Right where one machine runs everything. Across operators use `keys request` and `keys sign`: whoever holds two
    roles' keys can sit between the servers.
    """

    out: Path
    """Directory to write to; must not hold an authority yet."""
    party0_host: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Host names and addresses of server 0."""
    party1_host: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Host names and addresses of server 1."""
    dealer_host: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Host names and addresses of the dealer."""
    clients: tuple[str, ...] = ("client",)
    """Names of clients; each gets a token."""
    days: int = 825
    """Validity of the certificates."""

    def run(self) -> int:
        from autorep.mpc.tls import make_keys

        hosts = {"party0": self.party0_host, "party1": self.party1_host, "dealer": self.dealer_host}
        make_keys(self.out, hosts, self.days)
        hashes: tuple[dict[str, str], dict[str, str]] = ({}, {})
        for name in self.clients:
            for mine, new in zip(hashes, make_client(self.out / "client", name)):
                mine.update(new)
        for party, mine in enumerate(hashes):
            _write_hashes(self.out / f"party{party}" / "tokens.json", mine)
        print(
            f"wrote {self.out}/ca (keep offline), party0, party1, dealer, client\n"
            "every private key was made on this machine: good for one machine; servers of different operators each "
            "make their own (`autorep keys request`)"
        )
        return 0


@dataclass(frozen=True)
class Authority:
    """Make a certificate authority. Keep it offline; whoever holds it can name any machine server or dealer."""

    out: Path
    """Directory to write to."""
    days: int = 825
    """Validity of its certificate."""

    def run(self) -> int:
        from autorep.mpc.tls import make_authority

        make_authority(self.out, self.days)
        print(f"wrote {self.out}: certificate.pem for everybody, key.pem for nobody")
        return 0


@dataclass(frozen=True)
class Request:
    """Make this role's private key, which stays here, and a request for the authority to sign."""

    role: Literal["party0", "party1", "dealer"]
    """What this machine is."""
    out: Path
    """Directory of this role's keys."""
    host: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Host names and addresses that reach this machine."""

    def run(self) -> int:
        from autorep.mpc.tls import make_request

        fingerprint = make_request(self.out, self.role, self.host)
        print(f"send {self.out}/request.pem to the authority, and read this to it by telephone:\n{fingerprint}")
        return 0


@dataclass(frozen=True)
class Sign:
    """Sign a role's request after its operator has confirmed the fingerprint."""

    request: Path
    """The request.pem that came from the role."""
    role: Literal["party0", "party1", "dealer"]
    """The role it may have."""
    authority: Path
    """Directory of `keys authority`."""
    out: Path
    """Directory for certificate.pem and ca.pem, which go back to the role."""
    days: int = 825
    """Validity of the certificate."""

    def run(self) -> int:
        from autorep.mpc.tls import sign_request

        fingerprint, hosts = sign_request(self.authority, self.request, self.role, self.out, self.days)
        print(
            f"signed {self.role} at {', '.join(hosts) or 'no host'}, key {fingerprint}\n"
            f"send {self.out}/certificate.pem and ca.pem back only if its operator reads you the same digits"
        )
        return 0


@dataclass(frozen=True)
class NewClient:
    """Make a client's token, and for each server the hash to add to its tokens.json."""

    name: str
    """The client's name, the same at both servers."""
    out: Path
    """Directory for NAME.token (the client's, secret), NAME.party0.json and NAME.party1.json (the servers')."""

    def run(self) -> int:
        for party, hashes in enumerate(make_client(self.out, self.name)):
            _write_hashes(self.out / f"{self.name}.party{party}.json", hashes)
        print(
            f"{self.out}/{self.name}.token is the client's alone; add {self.name}.partyN.json to server N's tokens.json"
        )
        return 0


def make_client(folder: Path, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Write a client's secret; returns what each server must know of it."""
    from autorep.service.tokens import new_secret, server_token, token_hash

    require(Path(name).name == name, "client name", repr(name), "a name that can be a file's, without /")
    secret = new_secret()
    private.write_text(folder / f"{name}.token", secret + "\n")
    first, second = ({name: token_hash(server_token(secret, party))} for party in (0, 1))
    return first, second


def _write_hashes(path: Path, hashes: dict[str, str]) -> None:
    private.write_text(path, json.dumps(hashes, indent=1) + "\n")
