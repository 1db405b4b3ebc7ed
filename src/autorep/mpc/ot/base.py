"""Base oblivious transfers from X25519, turned into the all-but-one keys that `extension` starts from.

For each of 32 blocks the receiver of the extension grows a tree of depth four from a random root: sixteen keys. Its
sender, who drew delta, gets all of them but number delta of the block, through four base transfers a block:

1. Sender → receiver, 64 bytes a transfer: two public keys, of which it can use number b (b = the opposite of delta's
   bit); the other is a clamped random multiple of a random point, whose logarithm nobody knows.
2. Receiver → sender: an ephemeral key E, and for each level of each tree the exclusive or of all left and of all right
   nodes, each encrypted under the hash of the Diffie–Hellman secret with the respective public key.

Both directions run at once: two exchanges of 8,192 and 4,128 bytes. Semi-honest; the sender learns one of two sums a
level, the receiver cannot tell a usable public key from the other (decisional Diffie–Hellman on Curve25519).
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from autorep._native import ot as kernel
from autorep.errors import ProtocolError
from autorep.mpc.transport import Transport

DEPTH = 4
TRANSFERS = DEPTH * kernel.BLOCKS
KEY, NODE = 32, 16
FIRST_BYTES = TRANSFERS * 2 * KEY
SECOND_BYTES = KEY + TRANSFERS * 2 * NODE

_FIELD, _COEFFICIENT = 2**255 - 19, 486662


@dataclass(frozen=True)
class Ends:
    """One party's two ends: keys of the direction in which it chooses; keys and delta of the one in which it sends."""

    receiver: kernel.Receiver = field(repr=False)
    sender: kernel.Sender = field(repr=False)


def make_ends(link: Transport) -> Ends:
    """Both directions of base transfers with the peer: two exchanges."""
    choices = [secrets.randbits(1) for _ in range(TRANSFERS)]
    private = [X25519PrivateKey.generate() for _ in choices]
    offered = b"".join(_pair(key.public_key().public_bytes_raw(), bit) for key, bit in zip(private, choices))
    received = bytes(link.exchange("ot/base/keys", offered, FIRST_BYTES))
    trees = [_grow(secrets.token_bytes(NODE)) for _ in range(kernel.BLOCKS)]
    answer = bytes(link.exchange("ot/base/sums", _encrypt_sums(trees, received), SECOND_BYTES))
    keys = np.frombuffer(b"".join(b"".join(tree[-1]) for tree in trees), np.uint8)
    shape = (kernel.BLOCKS, kernel.KEYS, NODE)
    own, delta = _punctured(private, choices, offered, answer)
    return Ends(kernel.Receiver(keys.reshape(shape).copy()), kernel.Sender(own.reshape(shape), delta))


def _pair(usable: bytes, bit: int) -> bytes:
    """The usable public key at place `bit`, an oblivious one at the other."""
    keys = [usable, _oblivious()]
    return keys[bit] + keys[1 - bit]


def _oblivious() -> bytes:
    """A public key in the same group as real ones, of which nobody knows the private key."""
    while True:
        u = secrets.randbelow(_FIELD)
        if pow((u**3 + _COEFFICIENT * u * u + u) % _FIELD, (_FIELD - 1) // 2, _FIELD) == 1:
            point = X25519PublicKey.from_public_bytes(u.to_bytes(KEY, "little"))
            return X25519PrivateKey.generate().exchange(point)


def _grow(root: bytes) -> list[list[bytes]]:
    """Levels 1 to 4 of a tree: 2, 4, 8, 16 nodes."""
    levels, nodes = [], [root]
    for _ in range(DEPTH):
        nodes = [child for node in nodes for child in _children(node)]
        levels.append(nodes)
    return levels


def _children(node: bytes) -> tuple[bytes, bytes]:
    digest = hashlib.sha256(b"autorep/ot/tree/1" + node).digest()
    return digest[:NODE], digest[NODE:]


def _xor(*values: bytes) -> bytes:
    total = 0
    for value in values:
        total ^= int.from_bytes(value, "little")
    return total.to_bytes(NODE, "little")


def _pad(private: X25519PrivateKey, public: bytes, ephemeral: bytes, key: bytes, number: int, bit: int) -> bytes:
    """The hash of a Diffie–Hellman secret, bound to both public keys and to its place."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("ot/base: the peer sent a public key of low order; start the preparation anew") from None
    place = number.to_bytes(2, "little") + bytes([bit])
    return hashlib.sha256(b"autorep/ot/base/1" + secret + ephemeral + key + place).digest()[:NODE]


def _encrypt_sums(trees: list[list[list[bytes]]], offered: bytes) -> bytes:
    """Step 2: both sums of every level, each under its own public key."""
    ephemeral = X25519PrivateKey.generate()
    public = ephemeral.public_key().public_bytes_raw()
    out = [public]
    for number in range(TRANSFERS):
        nodes = trees[number // DEPTH][number % DEPTH]
        for bit in (0, 1):
            key = offered[(2 * number + bit) * KEY : (2 * number + bit + 1) * KEY]
            out.append(_xor(_xor(*nodes[bit::2]), _pad(ephemeral, key, public, key, number, bit)))
    return b"".join(out)


def _punctured(
    private: list[X25519PrivateKey], choices: list[int], offered: bytes, answer: bytes
) -> tuple[np.ndarray, np.ndarray]:
    """The sixteen keys of every block ordered by x ^ delta, number 0 missing (zero); and delta."""
    public, keys, delta = answer[:KEY], [], 0
    for block in range(kernel.BLOCKS):
        nodes: list[bytes] = [bytes(NODE)]
        hole = 0  # the node without a value at the current level
        for level in range(DEPTH):
            number = DEPTH * block + level
            bit = choices[number]
            place = 2 * number + bit
            key = offered[place * KEY : (place + 1) * KEY]
            masked = answer[KEY + place * NODE : KEY + (place + 1) * NODE]
            total = _xor(masked, _pad(private[number], public, public, key, number, bit))
            nodes = [child for node in nodes for child in _children(node)]
            nodes[2 * hole] = nodes[2 * hole + 1] = bytes(NODE)
            nodes[2 * hole + bit] = _xor(total, *nodes[bit::2])
            hole = 2 * hole + 1 - bit
        keys.append(b"".join(nodes[y ^ hole] for y in range(kernel.KEYS)))
        delta |= hole << (DEPTH * block)
    words = np.array([delta & (2**64 - 1), delta >> 64], np.uint64)
    return np.frombuffer(b"".join(keys), np.uint8).copy(), words
