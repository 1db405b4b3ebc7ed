"""The dealer's conversation with servers, over in-memory links."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from autorep.errors import HandshakeError, PeerAbort
from autorep.mpc.dealer import Dealer
from autorep.mpc.inventory import kit_bytes
from autorep.mpc.kit import verify
from autorep.mpc.transport import MemoryTransport, handshake, memory_pair
from autorep.program.files import program_hash, split
from autorep.program.ir import Program
from autorep.service import dealer
from autorep.service.dealer import DealerService
from autorep.service.dealer_link import DEALER_HELLO
from autorep.service.messages import ALIVE, receive_message, receive_result, send_message
from autorep.service.models import ServedModel


class Server:
    """One server's end, and the dealer's thread behind the other end."""

    def __init__(self, service: DealerService, role: str) -> None:
        self.link, far = memory_pair()
        far.peer = role  # type: ignore[attr-defined]  # TLS would have found it in the certificate
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._serve, args=(service, far), daemon=True)
        self._thread.start()

    def _serve(self, service: DealerService, far: MemoryTransport) -> None:
        try:
            service.serve_link(far)  # type: ignore[arg-type]
        except Exception as error:
            self.error = error

    def register(self, party: int, digest: str, archive: bytes, pair: str = "default") -> dict[str, Any]:
        """Say hello and fetch the blinding."""
        handshake(self.link, DEALER_HELLO)
        message = {"party": party, "pair": pair, "program": digest, "comparison": "dcf", "alive_seconds": 0.2}
        send_message(self.link, message)
        if receive_message(self.link)["send_program"]:
            self.link.send("program", archive)
        return receive_message(self.link)

    def close(self) -> None:
        self.link.close()
        self._thread.join(100)


@pytest.fixture(scope="module")
def archive(program: Program, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("kit")
    split(program, folder)
    return ServedModel.load(folder, 0).archive()


def test_party_1_gets_kits_while_others_are_being_dealt(
    program: Program, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several kits asked for at once must not reach party 1 in one burst, nor one wait for the next."""
    first_there, dealt, deal_to = threading.Event(), [], Dealer.deal_to

    def second_waits(self: Dealer, *arguments: Any) -> bytes:
        if len(dealt) == 1:
            assert first_there.wait(100), "party 1 did not get the first kit while the second was dealt"
        dealt.append(deal_to(self, *arguments))
        return dealt[-1]

    monkeypatch.setattr(Dealer, "deal_to", second_waits)
    service, digest = DealerService(None), program_hash(program)
    leader, follower = Server(service, "party0"), Server(service, "party1")
    leader.link.timeout = 60.0
    leader.register(0, digest, archive), follower.register(1, digest, archive)
    while "coming" not in _ask(leader, 3):
        pass
    for number in range(3):
        assert receive_result(leader.link)["kit"] == dealt[number].hex()
        _kit(leader, program, 0)
        send_message(leader.link, {"stored": True})
        if number == 0:
            while "kit" not in (message := receive_message(follower.link)):
                pass
            assert message["kit"] == dealt[0].hex()
            first_there.set()
    leader.close()
    follower.close()
    assert len(dealt) == 3


@pytest.mark.parametrize("in_memory", [1 << 28, 1])
def test_both_servers_of_a_pair_get_matching_kits(
    program: Program, archive: bytes, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    """With kits that wait in memory, and with kits too large for that, which go one at a time through the disk."""
    monkeypatch.setattr(dealer, "_IN_MEMORY", in_memory)
    service, digest = DealerService(None), program_hash(program)
    leader, follower = Server(service, "party0"), Server(service, "party1")
    blinding = leader.register(0, digest, archive), follower.register(1, digest, archive)
    assert blinding[0]["blinding_id"] == blinding[1]["blinding_id"]
    assert blinding[0]["seed"] != blinding[1]["seed"]
    while "coming" not in (answer := _ask(leader, 2)):
        assert "party 1 is not connected" in answer["reason"]
    assert answer["coming"] == (2 if in_memory > 1 else 1)
    first = []
    for _ in range(answer["coming"]):
        name = receive_message(leader.link)["kit"]
        header = verify(_kit(leader, program, 0))
        assert (header.kit_id.hex(), header.party) == (name, 0)
        send_message(leader.link, {"stored": True})
        first.append(name)
    second = []
    while len(second) < len(first):
        if "kit" in (message := receive_message(follower.link)):
            header = verify(_kit(follower, program, 1))
            assert (header.kit_id.hex(), header.party) == (message["kit"], 1)
            send_message(follower.link, {"stored": True})
            second.append(message["kit"])
    assert first == second
    service.stopping.set()
    leader.close()
    follower.close()


def test_a_kit_that_takes_longer_than_the_time_out_still_comes(
    program: Program, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealer, "_ALIVE_SECONDS", 0.05)
    service, digest = DealerService(None), program_hash(program)
    leader, follower = Server(service, "party0"), Server(service, "party1")
    leader.register(0, digest, archive)
    follower.register(1, digest, archive)
    deal_to = Dealer.deal_to

    heard = threading.Event()

    def slowly(self: Dealer, sinks: Any, batch: int) -> bytes:
        assert heard.wait(100), "nobody said that the dealer is alive"
        return deal_to(self, sinks, batch)

    monkeypatch.setattr(Dealer, "deal_to", slowly)
    while "coming" not in _ask(leader, 1):
        pass
    assert receive_message(leader.link) == ALIVE
    heard.set()
    assert receive_result(leader.link)["kit"] == verify(_kit(leader, program, 0)).kit_id.hex()
    service.stopping.set()
    leader.close()
    follower.close()


def _kit(server: Server, program: Program, party: int) -> bytes:
    return b"".join(server.link.receive_file("kit", kit_bytes(program, party)))


def _ask(leader: Server, count: int) -> dict[str, Any]:
    send_message(leader.link, {"deal": count})
    return receive_message(leader.link)


def test_pairs_have_blinding_of_their_own_surviving_a_restart(program: Program, archive: bytes, tmp_path: Path) -> None:
    digest = program_hash(program)

    def blinding(service: DealerService, pair: str) -> dict[str, Any]:
        server = Server(service, "party0")
        found = server.register(0, digest, archive, pair)
        server.close()
        return found

    service = DealerService(tmp_path / "state")
    a, b = blinding(service, "a"), blinding(service, "b")
    assert a != b
    assert blinding(DealerService(tmp_path / "state"), "a") == a
    assert blinding(DealerService(None), "a") != a
    for path in (tmp_path / "state").iterdir():
        assert path.stat().st_mode & 0o077 == 0


def test_certificate_of_another_role_cannot_register(program: Program, archive: bytes) -> None:
    server = Server(DealerService(None), "party1")
    with pytest.raises(PeerAbort, match="certificate of party1"):
        server.register(0, program_hash(program), archive)
    server.close()
    assert isinstance(server.error, HandshakeError)


def test_program_under_a_false_name_is_refused(archive: bytes) -> None:
    server = Server(DealerService(None), "party0")
    with pytest.raises(PeerAbort, match="not .* as announced"):
        server.register(0, 64 * "0", archive)
    server.close()


def test_damaged_archive_is_refused(program: Program) -> None:
    server = Server(DealerService(None), "party0")
    with pytest.raises(PeerAbort, match="could not be read"):
        server.register(0, program_hash(program), b"not an archive")
    server.close()
