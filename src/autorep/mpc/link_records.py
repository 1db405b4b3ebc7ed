"""What a link sends after its TLS handshake: records of up to 256 KiB, AES-256-GCM under keys agreed inside TLS.

TLS 1.3 authenticates both ends, and carries one message each way: a fresh random secret. HKDF-SHA256 of both secrets
gives two keys, one a direction: they are good as long as one end draws well, and what an end sealed never opens at that
end, whatever the other one sent. (Keys exported from TLS itself would do; Python's ssl offers none.) Then both ends
close TLS (close_notify, so that neither reads a byte of what follows) and go on over the same TCP:

    length of the text (4) | text, encrypted | tag (16)

The length is authenticated with the text. The nonce is the number of the record in its direction, so a record that was
changed, repeated, lost or reordered does not open. A link that is cut says nothing more: whoever waits for the next
record fails. There is no way back to TLS: an end that does not do all of this is refused.

After every 2**20 records (at most 2**38 bytes) a key is replaced by its HMAC, and forgotten. Why not TLS to the end?
Its records have 16 KiB at most, each costs three system calls and two copies more; one core moves half a GB/s both ways
at once through it, a third of what it does with these (`autorep bench link`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl
import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

TEXT_LIMIT = 1 << 18
LENGTH_BYTES, TAG_BYTES = 4, 16
_KEY_BYTES, _NONCE_BYTES = 32, 12
_GREETING = b"autorep records 2"
_RECORDS_PER_KEY = 1 << 20


def agree(connection: ssl.SSLSocket, seconds: float) -> tuple[Sealer, Opener]:
    """Exchange secrets inside TLS, then end TLS; what opens is what the other end's Sealer sealed.

    One message each way, sent at once. Raises OSError if the other end does not do the same within so many seconds.
    """
    deadline = time.monotonic() + seconds
    own, message = secrets.token_bytes(_KEY_BYTES), b""
    _wait_until(deadline, connection)
    connection.sendall(_GREETING + own)
    while len(message) < len(_GREETING) + _KEY_BYTES:
        _wait_until(deadline, connection)
        piece = connection.recv(len(_GREETING) + _KEY_BYTES - len(message))
        if not piece:
            raise ConnectionResetError("closed by the peer, which may not accept this end's certificate")
        message += piece
    if not message.startswith(_GREETING):
        raise ConnectionError("the peer does not speak of record keys; both ends must run the same release of autorep")
    _wait_until(deadline, connection)
    connection.unwrap()
    theirs = message[len(_GREETING) :]
    if connection.server_side:
        to_server, to_client = direction_keys(theirs, own)
        return Sealer(to_client), Opener(to_server)
    to_server, to_client = direction_keys(own, theirs)
    return Sealer(to_server), Opener(to_client)


def direction_keys(client: bytes, server: bytes) -> tuple[bytes, bytes]:
    """From both ends' secrets: the key under which the client seals, and that of the server."""
    derive = HKDF(hashes.SHA256(), 2 * _KEY_BYTES, salt=_GREETING, info=b"client to server, server to client")
    keys = derive.derive(client + server)
    return keys[:_KEY_BYTES], keys[_KEY_BYTES:]


def _wait_until(deadline: float, connection: ssl.SSLSocket) -> None:
    """The next call on the connection ends by the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the peer takes too long")
    connection.settimeout(left)


class _Direction:
    """A key and the number of the next record."""

    def __init__(self, key: bytes) -> None:
        self._key, self._cipher, self._number = key, AESGCM(key), 0

    def _next(self) -> bytes:
        """The nonce of the next record; each is used once under its key."""
        if self._number and self._number % _RECORDS_PER_KEY == 0:
            self._key = hmac.digest(self._key, b"autorep next record key", hashlib.sha256)
            self._cipher = AESGCM(self._key)
        nonce = self._number.to_bytes(_NONCE_BYTES, "little")
        self._number += 1
        return nonce


class Sealer(_Direction):
    """Seals what this end sends."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._record = memoryview(bytearray(LENGTH_BYTES + TEXT_LIMIT + TAG_BYTES))
        self._text = memoryview(bytearray(TEXT_LIMIT))

    def seal_both(self, start: bytes, rest: memoryview) -> memoryview:
        """`seal` of two pieces in one record."""
        text = self._text[: len(start) + len(rest)]
        text[: len(start)], text[len(start) :] = start, rest
        return self.seal(text)

    def seal(self, text: bytes | memoryview) -> memoryview:
        """The next record; valid until the next call. It must be sent, and nothing else before it."""
        size, nonce = len(text), self._next()  # may replace the key
        length, body = self._record[:LENGTH_BYTES], self._record[LENGTH_BYTES : LENGTH_BYTES + size + TAG_BYTES]
        length[:] = size.to_bytes(LENGTH_BYTES, "little")
        self._cipher.encrypt_into(nonce, text, length, body)
        return self._record[: LENGTH_BYTES + size + TAG_BYTES]


class Opener(_Direction):
    """Opens what the other end sent: `target`, `advance` as bytes arrive; `size` of a whole record; `open_into`."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._record = memoryview(bytearray(LENGTH_BYTES + TEXT_LIMIT + TAG_BYTES))
        self._filled, self._due = 0, LENGTH_BYTES

    def target(self, most: int = 0) -> memoryview:
        """Where the next bytes from the socket belong; empty when a record is there.

        What is known to follow, a text of `most` bytes or several that add up to it, need not wait for its length.
        """
        end = max(self._due, LENGTH_BYTES + min(most, TEXT_LIMIT) + TAG_BYTES) if most else self._due
        return self._record[self._filled : end]

    def advance(self, count: int) -> None:
        """`count` bytes were written to the target; raises ConnectionError for an impossible length."""
        self._filled += count
        if self._due == LENGTH_BYTES <= self._filled:
            size = int.from_bytes(self._record[:LENGTH_BYTES], "little")
            if not 1 <= size <= TEXT_LIMIT:
                raise ConnectionError(f"a record of {size} bytes was announced, 1 to {TEXT_LIMIT} are valid")
            self._due = LENGTH_BYTES + size + TAG_BYTES

    @property
    def size(self) -> int:
        """Bytes of the text of a record that is there, else 0."""
        return self._due - LENGTH_BYTES - TAG_BYTES if LENGTH_BYTES < self._due <= self._filled else 0

    def open_into(self, out: memoryview) -> None:
        """Write the record's text to `out`, of `size` bytes; raises ConnectionError if another record was due."""
        length, body = self._record[:LENGTH_BYTES], self._record[LENGTH_BYTES : self._due]
        nonce = self._next()  # may replace the key
        try:
            self._cipher.decrypt_into(nonce, body, length, out)
        except InvalidTag:
            raise ConnectionError("a record was changed, repeated or lost on its way") from None
        rest, self._filled, due, self._due = self._filled - self._due, 0, self._due, LENGTH_BYTES
        if rest:
            self._record[:rest] = self._record[due : due + rest]
            self.advance(rest)
