"""What goes wrong at the command line, and what is said and left behind then."""

from __future__ import annotations

import json
import os
import re
import socket
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


FILES = {
    "syntax.py": "def make(:\n",
    "raises.py": "def make(num_classes):\n    raise RuntimeError('no such layer')\n",
    "imports.py": "import nosuchmodule\n",
    "net.pt2": "not an archive",
    "net.onnx": "not a protocol buffer",
    "weights.pt": "weights of another program",
    "text.png": "not a picture",
}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("check syntax.py:make", "syntax.py: fails when Python runs it: .*line 1.*SyntaxError"),
        ("check raises.py:make", "RuntimeError: no such layer .line 2 of raises.py"),
        ("check imports.py:make", "No module named 'nosuchmodule' .line 1 of imports.py"),
        ("check net.pt2", "not a saved torch.export program"),
        ("check net.onnx", "not an ONNX file"),
        ("check weights.pt", "not a saved model.*--weights"),
        ("check resnet21", "did you mean 'resnet"),
        ("count absent", "one of your own is FILE.py:FUNCTION"),
        ("count digits_net --image-size 0", "image size = 0; valid: at least 1"),
        ("count digits_net --classes 0", "number of classes = 0"),
        ("cost --model digits_net --image-size -1", "image size = -1"),
        ("cost --model digits_net --batch 0", "batch = 0"),
        ("cost --model cifar10-resnet20-relu3pct --relus 5", "is finished"),
        ("compile cifar10-resnet20-relu3pct --out run --margin 0", "margin = 0"),
        ("compile cifar10-resnet20-relu3pct --out text.png", "text.png is a file; name another place"),
        ("compile cifar10-resnet20-relu3pct --out text.png/deeper", "text.png is a file; name another place"),
        ("keys --out text.png", "text.png/ca: Not a directory"),
        ("keys client --name a/b --out run", "client name = 'a/b'"),
        ("demo --out text.png", "text.png: File exists"),
        ("calibrate", "name at least one"),
        ("prepare --bundle absent --out run --count 0", "count = 0"),
        ("serve --local cifar10-resnet20-relu3pct --port 65535", "port = 65535"),
        ("serve --local cifar10-resnet20-relu3pct --lanes 0", "lanes = 0"),
        ("predict text.png --model absent.pt", "neither a saved model nor in the zoo"),
    ],
)
def test_wrong_input_is_refused_in_one_line(arguments: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in FILES.items():
        Path(name).write_text(content)
    before = set(Path().iterdir())
    assert re.search(expected, said(capsys, *arguments.split()))
    assert set(Path().iterdir()) == before


def test_a_taken_port_is_named_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        text = said(capsys, "serve", "--local", "cifar10-resnet20-relu3pct", "--port", str(port))
    assert f"port {port}: Address already in use" in text
    assert "--port" in text


@pytest.mark.parametrize(("name", "value"), [("concurrency", 0), ("timeout", -1), ("images_per_query", 0)])
def test_a_client_refuses_what_it_could_never_do(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{name} = {value}; valid"):
        Client(["https://127.0.0.1:1", "https://127.0.0.1:2"], **{name: value})


def test_accuracy_on_data_of_other_classes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    model = saved_model(Path(), ranges=False)
    for label in "abd":
        (Path("pictures") / label).mkdir(parents=True)
        for number in range(8):
            Image.fromarray(np.full((8, 8, 3), 9 * number, np.uint8)).save(f"pictures/{label}/{number}.png")
    text = said(capsys, "evaluate", str(model), "--data-path", "pictures")
    assert "tells 3 classes (a, b, c) apart, folder has 3 classes (a, b, d)" in text


def test_finished_models_are_counted_and_priced_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", "cifar10-resnet20-relu3pct", "--json", "-"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert (counted["total"], counted["kept"], counted["image_size"]) == (188416, 5652, 32)
    model = saved_model(Path(), ranges=True)
    assert main(["cost", "--model", str(model), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["comparisons"] == 4 * 8 * 8
