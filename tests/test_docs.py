"""What the documents name exists: files, modules, commands, other documents."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autorep.cli import bench, keys
from autorep.cli.local import ServeLocal
from autorep.cli.main import COMMANDS
from autorep.cli.serve import Serve

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "autorep"
DOCUMENTS = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
GUIDES = sorted(ROOT / name for name in ("SECURITY.md", "bench/results/training/README.md", "configs/README.md"))
GUIDES += sorted([*(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "experiments").glob("*.md")])


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


def invocations(text: str) -> Iterator[tuple[str, ...]]:
    """Every `autorep COMMAND …` in a document's code, as words: from blocks, indented lines and inline."""
    text = text.replace("\\\n", " ")
    blocks = re.compile(r"^```[^\n]*\n(.*?)^```", re.S | re.M)
    prose = blocks.sub("", text)
    pieces = [*"\n".join(blocks.findall(text)).splitlines(), *re.findall(r"^    .*", prose, re.M)]
    pieces += [piece.replace("\n", " ") for piece in re.findall(r"`([^`]+)`", prose)]
    for piece in pieces:
        for part in re.split(r"&&|\||;", re.sub(r"\s#.*", "", piece)):
            if found := re.search(r"\bautorep ([a-z]+.*)", part):
                yield tuple(found[1].split())


def unknown_options(words: tuple[str, ...]) -> set[str]:
    """Those of a command line that the command does not have."""
    first, second = words[0], words[1] if len(words) > 1 else ""
    if first == "serve":
        classes: list[type] = [Serve, ServeLocal]
    elif first == "keys" and second not in keys.COMMANDS:
        classes = [keys.Keys]
    else:
        entry = {"bench": bench.COMMANDS, "keys": keys.COMMANDS}.get(first, {}).get(second) or COMMANDS[first]
        classes = [getattr(importlib.import_module(entry[0]), entry[1])] if entry[1] else []
    names = {field.name.replace("_", "-") for one in classes for field in dataclasses.fields(one)}
    given = {word.removeprefix("--").split("=")[0] for word in words if re.match(r"--[a-z]", word)}
    return {name for name in given if name.removeprefix("no-") not in {*names, "config", "help", "version"}}


@pytest.mark.parametrize("guide", [*DOCUMENTS, *GUIDES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_exists(guide: Path) -> None:
    for words in invocations(guide.read_text(encoding="utf-8")):
        assert not unknown_options(words), f"{guide.name}: autorep {' '.join(words)}"


def test_an_option_that_does_not_exist_is_found() -> None:
    block = "```sh\nautorep bench pi --relu 5 --json -\n```\n"
    text = f"Run `autorep compile\n--anser class`.\n\n    autorep serve --local x \\\n        --prot 3\n\n{block}"
    assert [unknown_options(words) for words in invocations(text)] == [{"relu"}, {"prot"}, {"anser"}]


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
