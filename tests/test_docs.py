"""What the documents name exists: files, modules, commands, other documents."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from autorep.cli import bench
from autorep.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "autorep"
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


@pytest.fixture(params=DOCUMENTS, ids=lambda path: path.name)
def document(request: pytest.FixtureRequest) -> Path:
    return request.param


def code(document: Path) -> list[str]:
    """Everything in single backticks."""
    return re.findall(r"`([^`\n]+)`", document.read_text(encoding="utf-8"))


def test_every_file_named_exists(document: Path) -> None:
    for name in code(document):
        if "/" in name and re.fullmatch(r"\w[\w./-]*\.(py|cpp|js|md|toml|safetensors)", name):
            places = (ROOT / name, SOURCE / name, document.parent / name)
            assert any(place.exists() for place in places), f"{document.name}: {name}"


def test_every_module_named_exists(document: Path) -> None:
    for name in code(document):
        if match := re.fullmatch(r"autorep((?:\.\w+)+)", name):
            parent, _, last = match[1].rpartition(".")
            if parent:  # a public name of `autorep` itself is tested where they are locked
                found = importlib.util.find_spec(f"autorep{match[1]}") or importlib.util.find_spec(f"autorep{parent}")
                assert found, f"{document.name}: {name}"
                assert found.origin
                assert found.name.endswith(last) or re.search(rf"\b{last}\b", Path(found.origin).read_text())


def test_every_command_named_exists(document: Path) -> None:
    for first, second in re.findall(r"\bautorep ([a-z]+)(?: ([a-z]+))?", "\n".join(code(document))):
        assert first in COMMANDS, f"{document.name}: autorep {first}"
        assert first != "bench" or not second or second in bench.COMMANDS, f"{document.name}: autorep bench {second}"


def test_every_link_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(((?!http)[^)#]+)", document.read_text(encoding="utf-8")):
        assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_one_image_takes_one_file_a_step() -> None:
    text = (ROOT / "docs" / "reading-order.md").read_text(encoding="utf-8")
    steps = re.findall(
        r"^\d+\. `([\w/]+\.py)`", text[text.index("## One image") : text.index("## Where the kit")], re.M
    )
    assert len(steps) == 12
    assert all((SOURCE / step).exists() for step in steps)
