"""What goes wrong at the command line, and what is said and left behind then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from autorep.cli.main import main
from autorep.cli.predict import load_images
from autorep.errors import ConfigError
from autorep.service.client import Client
from tests.cli.test_commands import LEAVES
from tests.cli.test_local import saved_model

HEAVY = "numpy torch matplotlib httpx uvicorn cryptography PIL"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a mistake ends in."""
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith("autorep: error: ")
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    "arguments",
    [
        "train --data digits --model digits_net --weights absent.safetensors --out run",
        "train --data digits --model resnet20 --out run",
        "train --data folder --data-path absent --model digits_net --out run",
        "replace --data digits --model digits_net --budget 100 --weights absent.safetensors --out run",
        "replace --data digits --model digits_net --budget 100000 --weights weights.safetensors --out run",
        "replace --data digits --model digits_net --budget 100 --out run",
        "compile absent-model --out run",
        "prepare --bundle absent --out run",
        "report absent --out run/report.html",
    ],
)
def test_a_failed_start_leaves_nothing_behind(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "weights.safetensors" in arguments:
        import torch
        from safetensors.torch import save_file

        from autorep import models

        torch.manual_seed(0)
        save_file(models.create("digits_net").state_dict(), "weights.safetensors")
    before = set(Path().iterdir())
    said(capsys, *arguments.split())
    assert set(Path().iterdir()) == before


def test_a_reader_that_goes_away_ends_the_command_silently() -> None:
    script = "from autorep.cli.main import main; import sys; sys.exit(main(sys.argv[1:]))"
    for arguments in (["zoo"], ["train", "--help"], ["count", "resnet18", "--json", "-"]):
        read, write = os.pipe()
        os.close(read)  # gone before the first line
        ended = subprocess.run([sys.executable, "-c", script, *arguments], stdout=write, stderr=subprocess.PIPE)
        os.close(write)
        assert ended.stderr == b""
        assert ended.returncode == 141


def test_every_help_is_light_and_names_the_settings_file() -> None:
    """Nothing heavy is imported for a help text; time itself would depend on the machine."""
    script = f"""
import contextlib, io, sys
from autorep.cli.main import main
for name in {sorted(LEAVES)!r} + ["serve", "serve --local x", "keys", "keys sign"]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            main([*name.split(), "--help"])
        except SystemExit:
            pass
    assert "--config FILE.toml" in text.getvalue(), name
    loaded = set({HEAVY!r}.split()) & set(sys.modules)
    assert not loaded, (name, loaded)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_version_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("autorep ")


def test_a_compiled_folder_given_for_a_model_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(saved_model(Path(), ranges=True)), "--out", "bundle"]) == 0
    capsys.readouterr()
    for folder in ("bundle", "bundle/program", "bundle/public"):
        text = said(capsys, "evaluate", folder)
        assert "a compiled program" in text
        assert "serve --local" in text
    assert "no program here" in said(capsys, "cost", "--program", "bundle/party0/absent")


def test_an_untrained_network_given_for_a_model_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    saved_model(Path(), ranges=False)
    for name in ("mynet.py:make", "net.onnx"):
        assert f"autorep train --model {name}" in said(capsys, "evaluate", name)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8440", "127.0.0.1:8440"])
def test_an_address_in_clear_is_refused_with_the_right_one(url: str) -> None:
    with pytest.raises(ConfigError, match="never sent in clear; write https://127.0.0.1:8440"):
        Client([url, "https://127.0.0.1:8441"])


def test_pictures_of_one_name_are_told_apart() -> None:
    for folder in ("cats", "dogs"):
        Path(folder).mkdir()
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(f"{folder}/1.png")
    names, _ = load_images([Path("cats/1.png"), Path("dogs/1.png")], (1, 8, 8), {"mean": [0.5]})
    assert names == ["cats/1.png", "dogs/1.png"]
    names, _ = load_images([Path("cats/1.png"), Path("cats/1.png")], (1, 8, 8), {"mean": [0.5]})
    assert names == ["1.png", "1.png"]
