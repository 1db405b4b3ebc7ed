"""Imports between the packages point one way only, as the table says."""

from __future__ import annotations

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import autorep

ROOT = Path(autorep.errors.__file__).parent
EVERYWHERE = {path.stem for path in ROOT.glob("*.py")} - {"__init__", "modes"}
TOP = {"compiler", "data", "models", "modes", "mpc", "program", "replacement", "service", "training", "zoo", "_native"}
# package -> what its modules may import, at their head or inside a function
ALLOWED = {
    "_native": set(),
    "data": set(),
    "models": set(),
    "replacement": {"models", "_native"},
    "program": {"_native"},
    "compiler": {"modes", "program", "replacement", "_native"},
    "report": {"data", "models"},
    "training": {"replacement", "data", "models", "compiler", "modes", "mpc", "program", "report", "_native"},
    "zoo": {"models", "training"},
    "mpc": {"program", "_native"},
    "modes": {"program", "mpc"},
    "service": {"mpc", "program", "_native"},
    "bench": TOP,
    "cli": {*TOP, "bench", "report"},
}
# what a package may take from another is sometimes narrower than the whole package
NARROWER = {
    ("mpc", "program"): {"ir", "files", "quadratics", "shares", "tournament"},
    ("service", "program"): {"answer", "ir", "files", "outputs", "shares"},
}


def modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if package_of(path) in ALLOWED]


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree: ast.Module, types: bool = False) -> list[str]:
    """Dotted names of autorep modules that are imported anywhere; TYPE_CHECKING blocks count only with `types`."""
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
        elif isinstance(node, ast.If) and not types and "TYPE_CHECKING" in ast.unparse(node.test):
            queue += node.orelse
        else:
            queue += list(ast.iter_child_nodes(node))
    return [name.removeprefix("autorep.") for name in found if name.startswith("autorep.")]


def test_every_package_is_in_the_table() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= set(ALLOWED), f"say what {packages - set(ALLOWED)} may import"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_the_allowed_way(path: Path) -> None:
    here = package_of(path)
    for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
        package, *rest = name.split(".")
        if package in {*EVERYWHERE, here, "__version__"}:
            continue
        assert package in ALLOWED[here], f"{here} may not import {name}"
        narrower = NARROWER.get((here, package))
        assert narrower is None or not rest or rest[0] in narrower, f"{here} may not import {name}"


def import_graph(root: Path) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports anywhere, for types or late as well."""
    paths = {path.relative_to(root).with_suffix(""): path for path in root.rglob("*.py")}
    names = {".".join(short.parts).removesuffix(".__init__"): path for short, path in paths.items()}
    del names["__init__"]  # the root only says where each public name lives; see the test below
    graph = {}
    for name, path in names.items():
        found = imported(ast.parse(path.read_text(encoding="utf-8")), types=True)
        graph[name] = {one if one in names else one.rpartition(".")[0] for one in found} & names.keys() - {name}
    return graph


def test_no_imports_go_in_a_circle_not_even_for_types_or_late() -> None:
    TopologicalSorter(import_graph(ROOT)).prepare()  # a CycleError names the modules


@pytest.mark.parametrize(
    "back",
    [
        "from autorep.whole import Whole",
        "if TYPE_CHECKING:\n    from autorep.whole import Whole",
        "def late():\n    from autorep import whole",
        "class Part:\n    def late(self):\n        import autorep.whole",
    ],
)
def test_a_circle_is_caught(tmp_path: Path, back: str) -> None:
    for name, source in {"__init__": "", "whole": "from autorep.inner.part import Part", "inner/part": back}.items():
        (tmp_path / name).with_suffix(".py").parent.mkdir(exist_ok=True)
        (tmp_path / name).with_suffix(".py").write_text(source, encoding="utf-8")
    with pytest.raises(CycleError, match="inner.part.*whole|whole.*inner.part"):
        TopologicalSorter(import_graph(tmp_path)).prepare()


def test_nothing_inside_goes_through_the_public_names() -> None:
    for path in ROOT.rglob("*.py"):
        public = set(imported(ast.parse(path.read_text(encoding="utf-8")))) & set(autorep.__all__)
        taken = {name for name in public if not (ROOT / name).is_dir() and not (ROOT / f"{name}.py").exists()}
        assert taken <= {"__version__"}, f"{path.relative_to(ROOT)}: import {taken} from their own modules"


def test_the_document_has_the_same_table() -> None:
    text = (ROOT.parents[1] / "docs" / "reading-order.md").read_text(encoding="utf-8")
    documented = {}
    for line in text[text.index("| may import |") :].splitlines()[2:]:
        if not line.startswith("|"):
            break
        packages, imports = (set(re.findall(r"`(\w+)`", cell)) for cell in line.strip("|").split("|"))
        documented |= dict.fromkeys(packages, set(ALLOWED) - {"cli"} if "all of them" in line else imports)
    assert documented == ALLOWED
    everywhere = re.search(r"The modules ([^.]+) may be imported everywhere", text)
    assert everywhere
    assert set(re.findall(r"`(\w+)`", everywhere[1])) == EVERYWHERE


def test_finder_sees_functions_and_skips_type_checking() -> None:
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
    assert set(imported(ast.parse(source))) == {"data", "service.client.Client", "report.page"}
    assert set(imported(ast.parse(source), types=True)) - set(imported(ast.parse(source))) == {"mpc.party"}
