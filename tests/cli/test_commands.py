"""Every command's help reads well, and mistakes end in one clear line, not in a traceback."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autorep.cli import bench
from autorep.cli.main import COMMANDS, main
from autorep.errors import ConfigError
from autorep.settings import from_mapping, parse

TABLES = {**COMMANDS, **{f"bench {name}": entry for name, entry in bench.COMMANDS.items()}}
LEAVES = {name: entry for name, entry in TABLES.items() if entry[1]}


def command(name: str) -> type:
    module, class_name, _ = LEAVES[name]
    return getattr(importlib.import_module(module), class_name)


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"^  {name} ", text, re.M) for name in COMMANDS)
    assert all(len(line) <= 100 for line in text.splitlines())


def documentation(cls: type, field: str) -> str:
    """What the docstring under a field says, as one line; empty when there is none."""
    pattern = rf'^    {field}: [^\n]*(?:\n        [^\n]*)*\n(?:    \)\n)?    """(.*?)"""'
    for base in cls.__mro__[:-1]:
        if found := re.search(pattern, inspect.getsource(base), re.M | re.S):
            return " ".join(found[1].split())
    return ""


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_options_are_frozen_and_documented(name: str) -> None:
    cls = command(name)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]  # every command is a dataclass
    for field in dataclasses.fields(cls):
        assert documentation(cls, field.name), f"{name}: say what {field.name} is"


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_help_explains_command_and_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    text = " ".join(re.sub(r"[│╭╮╰╯─|]", " ", capsys.readouterr().out).split())
    first = " ".join((command(name).__doc__ or "").strip().split("\n\n")[0].split())
    assert first[:60] in text
    for field in dataclasses.fields(command(name)):
        assert documentation(command(name), field.name)[:40] in text, f"{name}: {field.name} is not explained"


def test_help_flows_over_the_lines_of_the_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        main(["replace", "--help"])
    assert "options of its builder follow an @: resnet20@width=0.5" in capsys.readouterr().out


RESULTS = "demo count train replace evaluate check compile compare cost prepare predict zoo report"


@pytest.mark.parametrize("name", RESULTS.split())
def test_commands_with_results_take_json(name: str) -> None:
    assert "json" in {field.name for field in dataclasses.fields(command(name))}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["demmo"], "did you mean 'demo'"),
        (["demo", "--images", "0"], "choose 1 to 360"),
        (["demo", "--config", "absent.toml"], "no such settings file"),
        (["count", "resnet19"], "did you mean 'resnet18'"),
        (["bench", "pie"], "did you mean 'pi'"),
        (["report", "absent-folder"], "absent-folder: no such file or directory"),
        (["evaluate", "no-such-model"], "neither a saved model nor in the zoo"),
    ],
)
def test_mistake_is_one_clear_line(
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith("autorep: error: ")
    assert expected in text


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    from autorep import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"autorep {__version__}\n"


def test_settings_file_fills_in_and_flags_win(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text("images = 120\nbudget = 0.1\n")
    settings = parse(command("demo"), ["--config", str(path), "--budget", "0.2"], "autorep demo")
    assert (settings.images, settings.budget) == (120, 0.2)


def test_two_threads_may_parse_at_once() -> None:
    within, second_within, first_done = threading.Event(), threading.Event(), threading.Event()

    def first() -> int:
        within.set()
        second_within.wait(0.5)  # a second parse that did not wait for this one would begin here
        return 1

    def second() -> int:
        second_within.set()
        first_done.wait(60)  # and this one would end in the middle of it
        return 2

    @dataclasses.dataclass(frozen=True)
    class First:
        number: int = dataclasses.field(default_factory=first)

    @dataclasses.dataclass(frozen=True)
    class Second:
        number: int = dataclasses.field(default_factory=second)

    def parse_second() -> Second:
        assert within.wait(60)
        return parse(Second, [], "second")

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(parse, First, [], "first"), pool.submit(parse_second)
        one.add_done_callback(lambda _: first_done.set())
        assert (one.result().number, two.result().number) == (1, 2)


def test_unknown_key_in_a_settings_file_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "demo.toml"
    path.write_text("budgett = 0.1\n")
    with pytest.raises(ConfigError, match=r"demo\.toml: unknown key 'budgett'; did you mean 'budget'"):
        parse(command("demo"), ["--config", str(path)], "autorep demo")


@pytest.mark.parametrize(("values", "expected"), [({"images": "many"}, "images"), ({"budget": [1]}, "budget")])
def test_value_of_the_wrong_type_is_named(values: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        from_mapping(command("demo"), values, "demo.toml")
