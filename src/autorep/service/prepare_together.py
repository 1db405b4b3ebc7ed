"""Material made ahead by the two servers themselves: run on both at once, each writes its own half.

OUT/party<I>/<program>/blinding.json  says that no dealer made it
OUT/party<I>/<program>/kits/<id>      kits, to be moved into this server's store by `prepare.move_in`

Party 0 waits at the given address, party 1 dials it; the link is TLS 1.3, both ends authenticated. A kit is whole on
disk or not there; kits that only one server has are never chosen, since queries use what both have. After a lost
link both commands simply run again: keys and transfers are new at every start, nothing is reused.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from tqdm import tqdm

from autorep import _native, private
from autorep.errors import ConfigError, ProtocolError
from autorep.mpc import tls
from autorep.mpc.operations import protocols
from autorep.mpc.transport import Transport
from autorep.mpc.transport_tcp import accept, connect
from autorep.mpc.two_party.model import Maker, TwoPartyModel
from autorep.mpc.two_party.names import check_owners_word
from autorep.program.files import load_party, load_public, program_hash
from autorep.service.blinding import made_together, write_blinding

AT_ONCE = 4


def prepare_together(
    bundle: Path, party: int, peer: tuple[str, int], keys: Path, out: Path, count: int,
    preparation: str = "two-party", timeout: float = 60.0,
) -> int:  # fmt: skip
    """Make `count` kits together with the other server; returns the bytes written here."""
    if count < 1:
        raise ConfigError(f"--count {count}: give at least 1")
    model = load_model(bundle, party, preparation)
    program = model.program
    folder = private.make_folder(out / f"party{party}" / program_hash(program)[:16] / "kits").parent
    write_blinding(folder, made_together(program, preparation))
    link = _link(party, peer, keys, timeout)
    written = 0
    try:
        maker = Maker(model, link)
        _native.keep_freed_memory()
        with tqdm(total=count, desc="preparing", unit="inference", leave=False) as progress:
            while progress.n < count:
                for kit_id, kit in maker.make(min(AT_ONCE, count - int(progress.n))):
                    _write(folder, kit_id, kit)
                    written += len(kit)
                    progress.update()
    except Exception as error:  # the other party is told of any end, then it is raised as it was
        link.abort(f"party {party} stopped: {type(error).__name__}")
        raise
    finally:
        link.close()
    return written


def load_model(bundle: Path, party: int, preparation: str) -> TwoPartyModel:
    """What a party makes kits from: the program and its own shares, from a bundle directory."""
    program = load_public(bundle / "public")
    check_owners_word(program, preparation)
    shares = load_party(bundle / f"party{party}", program).shares
    model = TwoPartyModel(program, party, preparation)
    for operation in protocols(program):
        for name in operation.fixed():
            model.parameter(operation, name, shares[f"{operation.op.name}.{name}"])
    return model


def _write(folder: Path, kit_id: bytes, kit: bytes) -> None:
    draft = folder / "kit.new"
    with open(draft, "wb", opener=private.opener) as sink:
        sink.write(kit)
        sink.flush()
        os.fsync(sink.fileno())
    os.rename(draft, folder / "kits" / kit_id.hex())


def _link(party: int, peer: tuple[str, int], keys: Path, timeout: float) -> Transport:
    if party == 0:
        with socket.create_server(peer) as listener:
            listener.settimeout(timeout)
            try:
                raw, _ = listener.accept()
            except TimeoutError:
                raise ProtocolError(
                    f"party 1 did not dial {peer[0]}:{peer[1]} within {timeout:g} s; start both commands together"
                ) from None
        return accept(raw, tls.server_context(keys), {"party1"}, timeout)
    until = time.monotonic() + timeout
    while True:
        try:
            return connect(*peer, tls.client_context(keys), "party0", timeout)
        except ProtocolError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
