"""Imports between the packages point one way only, as the table says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import autorep

ROOT = Path(autorep.errors.__file__).parent
EVERYWHERE = {"errors", "settings"}
# package -> packages whose modules it may import when it is itself imported
ALLOWED = {
    "_native": set(),
    "data": set(),
    "models": set(),
    "replacement": {"models", "_native"},
    "program": {"_native"},
    "compiler": {"program", "replacement", "_native"},
    "training": {"replacement", "data", "models", "compiler", "program", "_native"},
    "zoo": {"training"},
    "mpc": {"program", "_native"},
    "service": {"mpc", "program", "_native"},
    "bench": {
        "compiler",
        "_native",
        "data",
        "models",
        "replacement",
        "training",
        "program",
        "mpc",
        "service",
        "cli",
        "zoo",
    },
    "report": {"compiler", "bench", "data", "models", "replacement", "training", "program", "mpc", "service", "zoo"},
}
# what a package may take from another is sometimes narrower than the whole package
NARROWER = {("mpc", "program"): {"ir", "files", "shares"}, ("service", "program"): {"ir", "files", "shares"}}


def modules() -> list[Path]:
    return [
        path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT and path.relative_to(ROOT).parts[0] != "cli"
    ]


def imported_at_load(tree: ast.Module) -> list[str]:
    """Dotted names of autorep modules imported when the module is loaded; TYPE_CHECKING blocks do not count."""
    found: list[str] = []
    queue: list[ast.AST] = list(tree.body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "autorep":
            found += [f"autorep.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            queue += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
            queue += list(ast.iter_child_nodes(node))
    return [name.removeprefix("autorep.") for name in found if name.startswith("autorep.")]


def test_every_package_is_in_the_table() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"cli"}
    assert packages <= set(ALLOWED), f"say what {packages - set(ALLOWED)} may import"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_the_allowed_way(path: Path) -> None:
    here = path.relative_to(ROOT).parts[0]
    for name in imported_at_load(ast.parse(path.read_text(encoding="utf-8"))):
        package, *rest = name.split(".")
        if package in EVERYWHERE or package == here or package not in {*ALLOWED, "cli"}:
            continue
        if ".".join(name.split(".")[:2]) == "cli.output":  # printing tables is for every command
            continue
        assert package in ALLOWED[here], f"{here} may not import {name}"
        narrower = NARROWER.get((here, package))
        assert narrower is None or not rest or rest[0] in narrower, f"{here} may not import {name}"


def test_finder_sees_nested_and_skips_type_checking() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from autorep.mpc import party
else:
    import autorep.data
try:
    from autorep.service.client import Client
except ImportError:
    pass
def later():
    from autorep.report import page
"""
    assert set(imported_at_load(ast.parse(source))) == {"data", "service.client.Client"}
