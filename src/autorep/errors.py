"""Every error AutoReP raises on purpose.

A message says what was found, where, what is valid and what to do.

    AutorepError
    ├── ConfigError         a setting, flag or TOML key is wrong
    ├── DataError           a data set is missing, truncated or of the wrong shape
    ├── TraceError          the model could not be followed, or would not be computed rightly
    ├── UnsupportedOpError  the compiler met operations that it cannot translate
    ├── BudgetError         the ReLU budget is impossible or senseless
    ├── RangeError          a layer's values do not fit any fixed-point width
    ├── CheckpointError     a saved model, run, program or bundle is damaged or does not match
    ├── MaterialError       correlated randomness is exhausted, mismatched or damaged
    │   └── UsedError       it was used before
    └── ProtocolError       the other party failed, timed out, aborted or speaks something else
        ├── HandshakeError  version, program or parameters differ
        │   └── CertificateError  the other end is not who it must be
        ├── CheatingError   a known image was answered wrongly
        └── PeerAbort       the other side stopped and said why
"""

from __future__ import annotations


class AutorepError(Exception):
    """Base of every error AutoReP raises on purpose."""


class ConfigError(AutorepError):
    """A setting, flag or TOML key is wrong."""


class DataError(AutorepError):
    """A data set is missing, truncated or of the wrong shape."""


class TraceError(AutorepError):
    """The model could not be followed, or what was made of it does not compute the same."""


class UnsupportedOpError(AutorepError):
    """The compiler met operations that it cannot translate."""


class BudgetError(AutorepError):
    """The ReLU budget is impossible or senseless."""


class RangeError(AutorepError):
    """A layer's values do not fit any fixed-point width."""


class CheckpointError(AutorepError):
    """A saved model, run, program or bundle is damaged or does not match."""


class MaterialError(AutorepError):
    """Correlated randomness is exhausted, mismatched or damaged."""


class UsedError(MaterialError):
    """Correlated randomness was used before; a second use would reveal what it hid."""


class ProtocolError(AutorepError):
    """The other party failed, timed out, aborted or speaks something else."""


class HandshakeError(ProtocolError):
    """Version, program or parameters differ between the two ends."""


class CertificateError(HandshakeError):
    """The other end is not who it must be."""


class CheatingError(ProtocolError):
    """A known image was answered wrongly: a server departs from the protocol."""


class PeerAbort(ProtocolError):
    """The other side stopped and said why."""
