"""Client tokens: one secret a client, another token for each server.

A client keeps one random secret and sends server i the token HMAC-SHA-256(secret, "autorep server i"), in hex. Server
i holds only the SHA-256 of its own. So a server that was asked knows a token that no other server accepts: it cannot
speak for the client to the other one, and a stolen hash file opens nothing.

    printf 'autorep server 0' | openssl dgst -sha256 -hmac "$(cat alice.token)"     # the same in a shell
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from autorep.errors import ConfigError


def new_secret() -> str:
    """A client's secret: 256 random bits."""
    return secrets.token_urlsafe(32)


def server_token(secret: str, party: int) -> str:
    """What a client sends to one of the two servers."""
    return hmac.new(secret.encode(), f"autorep server {party}".encode(), hashlib.sha256).hexdigest()


def token_hash(token: str) -> str:
    """What a server keeps of it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def read_secret(path: Path | None) -> str | None:
    """The secret in a file of `autorep keys`, or None where no file is named."""
    if path is None:
        return None
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the client's token ({error}); `autorep keys` writes one") from None
    if not secret:
        raise ConfigError(f"{path}: the file is empty; `autorep keys` writes a client's token")
    return secret
