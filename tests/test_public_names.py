"""The public face of the package is what is written here, and importing it stays light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import autorep

PUBLIC = {
    "AutorepError",
    "AsyncClient",
    "Client",
    "Program",
    "Replacement",
    "__version__",
    "check",
    "compile_program",
    "count_relus",
    "data",
    "errors",
    "load",
    "models",
    "replace_activations_",
    "training",
    "zoo",
}
ERRORS = {
    "AutorepError",
    "BudgetError",
    "CertificateError",
    "CheatingError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "HandshakeError",
    "MaterialError",
    "UsedError",
    "PeerAbort",
    "ProtocolError",
    "RangeError",
    "TraceError",
    "UnsupportedOpError",
}


def test_public_names_are_locked() -> None:
    assert set(autorep.__all__) == PUBLIC
    assert sorted(autorep.__all__) == dir(autorep)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(autorep, name) is not None


def test_unknown_name_lists_the_public_ones() -> None:
    with pytest.raises(AttributeError, match="compile_program"):
        autorep.compile_programm  # noqa: B018


def test_error_names_are_locked_and_share_one_root() -> None:
    found = {name for name, value in vars(autorep.errors).items() if isinstance(value, type)}
    assert found == ERRORS
    assert all(issubclass(getattr(autorep.errors, name), autorep.AutorepError) for name in found)


@pytest.mark.parametrize("imported", ["autorep", "autorep.service.client", "autorep.mpc.party", "autorep.cli.main"])
def test_import_does_not_load_torch(imported: str) -> None:
    code = f"import sys, {imported}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
