"""One party's side of preparing between two servers: its model, and the maker of kits.

`TwoPartyModel` needs no link: it keeps this party's parameter shares and reads kits. `Maker` talks to the other
server's maker, on a link of its own: keys and base transfers when it starts, then kits in batches. Each `make` walks
the program twice per kit: first for the truncations, whose results are operands of comparisons, then for everything
else; and evaluates all draws of one verb together.

    pair setup     keys, base transfers, a's encryption: once per start, in memory only
    make(count)    P0 names the kits; about 30 + (linear layers) + 2·(comparison window) flights, whatever the count
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from typing import Any

import numpy as np

from autorep.errors import MaterialError, ProtocolError
from autorep.mpc import verbs
from autorep.mpc.kit import HEADER_BYTES, KIT_ID_BYTES, TAG_BYTES, Header, kit_id, read_header
from autorep.mpc.operations import Operation, correlate, protocols
from autorep.mpc.operations.linear import RingKernel
from autorep.mpc.preparation import Preparation
from autorep.mpc.prg import fresh_seed
from autorep.mpc.rlwe.packing import Layer, layer_of
from autorep.mpc.transport import Transport, handshake
from autorep.mpc.two_party.account import Account
from autorep.mpc.two_party.cross import Coefficients, Weights, way
from autorep.mpc.two_party.evaluate import Draw, Evaluation, Tensors
from autorep.mpc.two_party.stored import OwnRandomness, TwoPartySource, kit_bytes, kit_layout, write_kit
from autorep.mpc.two_party.wire import fingerprints
from autorep.mpc.verbs import Correlation, Source
from autorep.program import ir
from autorep.program.files import program_hash

_ORDER = struct.Struct("<II")
ORDER_BYTES = _ORDER.size


class TwoPartyModel(Preparation):
    """A model whose kits the two servers make themselves.

    Args:
        preparation: "two-party" (ring-LWE and transfers) or "ot" (transfers alone); kits are alike.
    """

    def __init__(self, program: ir.Program, party: int, preparation: str = "two-party") -> None:
        self.program, self.party, self.preparation = program.public(), party, preparation
        self.program_hash = bytes.fromhex(program_hash(program))
        self._way = way(preparation)
        self.linear_error = self._way.linear_error(linear_layers(program))
        self.shares: dict[str, np.ndarray] = {}
        self.kernels: dict[str, RingKernel] = {}
        self._id: bytes | None = None

    def parameter(self, operation: Operation, name: str, share: np.ndarray) -> None:
        """Keep a share; nothing is opened."""
        self.shares[f"{operation.op.name}.{name}"] = share
        if name == "weight":
            self.kernels[operation.op.name] = operation.pack(name, share)

    @property
    def shares_id(self) -> bytes:
        """Names this party's parameter shares; never sent."""
        if self._id is None:
            digest = hashlib.sha256(b"autorep/two-party/shares/1")
            for label, share in self.shares.items():
                digest.update(label.encode() + b"\0" + np.ascontiguousarray(share).data.tobytes())
            self._id = digest.digest()[:16]
        return self._id

    def source(self, kit: bytes | memoryview) -> TwoPartySource:
        """The reader of one kit."""
        header = read_header(kit)
        if header.blinding_id != self.shares_id:
            raise MaterialError(
                f"kit {header.kit_id.hex()}: made by a dealer, or for other parameter shares than this server's; "
                f"prepare new kits with --preparation {self.preparation}"
            )
        return TwoPartySource(self.program, header, kit, self.linear_error)

    def weights(self) -> dict[str, Weights]:
        """Every linear layer with this party's share."""
        layers = linear_layers(self.program)
        return {layer.name: Weights(layer, self.shares[f"{layer.name}.weight"]) for layer in layers}

    def coefficients(self) -> Coefficients:
        """a and b of every quadratic of one image."""
        a, b = ([np.zeros(0, np.uint64)] for _ in "ab")
        for op in self.program.ops:
            if isinstance(op, ir.Activation) and op.quad_count:
                channels = verbs.Quadratic(op.name, op.quad_count, op).channels
                for parts, name in ((a, "a"), (b, "b")):
                    parts.append(self.shares[f"{op.name}.{name}"][channels])
        return Coefficients(np.concatenate(a), np.concatenate(b))


def linear_layers(program: ir.Program) -> list[Layer]:
    """The geometry of every linear operation, in program order."""
    return [
        layer_of(op, program[op.inputs[0]].shape)
        for op in program.ops
        if isinstance(op, ir.Conv | ir.Linear | ir.Affine)
    ]


class _Walk(Source):
    """One kit's walk: gives what the own seed gives, and notes what must be evaluated with the peer."""

    def __init__(self, own: OwnRandomness) -> None:
        self.own = own
        self.truncations: list[Draw] = []
        self.draws: list[Draw] = []
        self.truncated: dict[str, Tensors] = {}

    def draw(self, correlation: Correlation, *operands: np.ndarray) -> Any:
        c = correlation
        if isinstance(c, verbs.Mask):
            return self.own.words(c.label, c.count, c.bits)
        if not isinstance(c, verbs.Truncation):
            self.draws.append((c, operands))
            return None
        if not c.wrap_bits:
            return self.own.truncate(c, operands[0])
        if c.label not in self.truncated:
            self.truncations.append((c, operands))
            return np.zeros(c.count, np.uint64), np.zeros(c.count, np.uint64)
        return tuple(self.truncated[c.label])


class Maker:
    """Makes kits with the other server's maker over `link`, which serves nothing else meanwhile.

    Attributes:
        account: what the last `make` took, part by part.
    """

    def __init__(self, model: TwoPartyModel, link: Transport) -> None:
        self.model, self._link = model, link
        link.phase = "offline"
        facts = {"program": model.program_hash.hex(), "preparation": model.preparation, "wire": fingerprints()}
        handshake(link, {"party": model.party, **facts})
        cross = way(model.preparation)(model.party, link)
        coefficients = model.coefficients()
        cross.load(model.weights(), coefficients)
        self.account = Account(link)
        self._evaluation = Evaluation(cross, model.kernels, coefficients, self.account)

    def make(self, count: int = 1, batch: int = 1) -> list[tuple[bytes, bytes]]:
        """`count` kits of `batch` images each, as (kit id, this party's kit)."""
        self.account.parts.clear()
        with self.account.part("masks and kits"):
            return self._make(count, batch)

    def _make(self, count: int, batch: int) -> list[tuple[bytes, bytes]]:
        model, ids = self.model, self._agree(count, batch)
        seeds = [fresh_seed() for _ in range(count)]
        walks = [_Walk(OwnRandomness(seed, model.party)) for seed in seeds]
        operations = protocols(model.program, batch, "bits")
        for walk in walks:
            correlate(model.program, operations, walk)
        results: list[dict[str, Tensors]] = [{} for _ in walks]
        flat = [(walk, results[i], draw) for i, walk in enumerate(walks) for draw in walk.truncations]
        with self.account.part("comparisons"):
            truncated = self._evaluation.truncations([draw for _, _, draw in flat])
        for (walk, kept, (c, _)), tensors in zip(flat, truncated):
            walk.truncated[c.label] = kept[c.label] = tensors
        for walk in walks:
            walk.draws.clear()
            correlate(model.program, operations, walk)
        self._evaluate(walks, results)
        body, layout = kit_bytes(model.program, batch) - HEADER_BYTES - TAG_BYTES, kit_layout(model.program, batch)
        kits = []
        for name, seed, kept in zip(ids, seeds, results):
            binding = name, model.program_hash, model.shares_id, seed
            header = Header(model.party, "bits", batch, *binding, body, layout)
            kits.append((name, write_kit(model.program, header, kept)))
        return kits

    def _agree(self, count: int, batch: int) -> list[bytes]:
        """P0 names the kits; both must want the same number of the same size."""
        order = _ORDER.pack(count, batch)
        if count < 1 or batch < 1:
            raise MaterialError(f"prepare: {count} kits of {batch} images; both must be at least 1")
        length = len(order) + count * KIT_ID_BYTES
        if self.model.party == 0:
            ids = b"".join(kit_id(secrets.token_bytes(8), batch, secrets.token_bytes(7)) for _ in range(count))
            self._link.send("prepare/kits", order + ids)
        else:
            received = bytes(self._link.receive("prepare/kits", length))
            if received[: len(order)] != order:
                theirs = _ORDER.unpack(received[: len(order)])
                message = f"the other server prepares {theirs} (kits, images), this one {(count, batch)}"
                self._link.abort(message)
                raise ProtocolError(f"prepare/kits: {message}; start both alike")
            ids = received[len(order) :]
        return [ids[i : i + KIT_ID_BYTES] for i in range(0, len(ids), KIT_ID_BYTES)]

    def _evaluate(self, walks: list[_Walk], results: list[dict[str, Tensors]]) -> None:
        """Everything but truncations, verb by verb."""
        made = self._evaluation

        def of(kind: type[Correlation]) -> list[tuple[int, Draw]]:
            return [(i, draw) for i, walk in enumerate(walks) for draw in walk.draws if isinstance(draw[0], kind)]

        def keep(found: list[tuple[int, Draw]], tensors: list[Tensors]) -> None:
            for (i, (c, _)), values in zip(found, tensors, strict=True):
                results[i][c.label] = values

        for part, kind, evaluate in (
            ("linear layers", verbs.LinearImage, made.linear),
            ("products", verbs.Product, made.products),
            ("comparisons", verbs.Bits, made.bits),
        ):
            found = of(kind)
            with self.account.part(part):
                keep(found, evaluate([draw for _, draw in found]))
        with self.account.part("comparisons"):
            found = of(verbs.BitTriples)
            keep(found, made.triples([(draw[0], walks[i].own) for i, draw in found]))
            found = of(verbs.Selection)
            keep(found, made.selections([(draw, walks[i].own) for i, draw in found]))
        found = of(verbs.Quadratic)
        queries = [[draw for j, draw in found if j == i] for i in range(len(walks))]
        with self.account.part("quadratics"):
            keep(found, [tensors for query in made.quadratics(queries) for tensors in query])
