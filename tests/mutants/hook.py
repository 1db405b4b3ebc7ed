"""A pytest plugin that mutates modules while they are imported; nothing on the disk changes.

AUTOREP_MUTANT=NAME pytest -p tests.mutants.hook ...
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from types import CodeType

from tests.mutants.table import MUTANTS, SOURCES, Change


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, changes: list[Change]) -> None:
        super().__init__(name, path)
        self._changes = changes

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        for change in self._changes:
            source = change.apply(source)
        return compile(source, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes: tuple[Change, ...]) -> None:
        self._changes: dict[str, list[Change]] = {}
        for change in changes:
            module = "autorep." + change.file.removesuffix(".py").replace("/", ".")
            self._changes.setdefault(module, []).append(change)

    def find_spec(self, name, path=None, target=None):
        changes = self._changes.get(name)
        if changes is None:
            return None
        file = str(SOURCES / changes[0].file)
        return importlib.machinery.ModuleSpec(name, _Loader(name, file, changes), origin=file)


def _install(name: str) -> None:
    changes = MUTANTS[name].changes
    early = [c.file for c in changes if "autorep." + c.file.removesuffix(".py").replace("/", ".") in sys.modules]
    assert not early, f"imported before it could be mutated: {early}"
    sys.meta_path.insert(0, _Finder(changes))


if os.environ.get("AUTOREP_MUTANT"):
    _install(os.environ["AUTOREP_MUTANT"])
