"""Whether the compiled module was built from the sources that lie beside it.

Python code is new as soon as a checkout is updated, the compiled module only once it is built again. In between, calls
may fail or, worse, give other numbers than the other server's build. An installed wheel has no sources, and cannot part
from them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType

from autorep.errors import ConfigError

SOURCES = Path(__file__).parent / "cpp"
ENDINGS = (".cpp", ".h", ".inc")


def fingerprint(folder: Path) -> str:
    """Of a folder's C++ files, by name and content; CMakeLists.txt computes the same. It takes a millisecond."""
    files = sorted(file for file in folder.iterdir() if file.suffix in ENDINGS)
    lines = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check(core: ModuleType, folder: Path = SOURCES) -> None:
    """Refuse a module that was built from other sources than these, or so long ago that it does not know."""
    if folder.is_dir() and getattr(core, "fingerprint", "") != fingerprint(folder):
        raise ConfigError(
            f"{core.__file__} was built from other sources than those in {folder}, which have changed since; "
            "build it anew: pip install -e . (or make setup) at the top of the checkout"
        )
