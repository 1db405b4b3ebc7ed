"""`autorep check`, `compile`, `compare`, `cost` as a user calls them."""

from __future__ import annotations

import json

import pytest
import torch

from autorep import models
from autorep.cli.main import main
from autorep.program.files import load, load_party, load_public
from autorep.training.saved import save_model

NETWORK = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softmax(1), nn.Flatten(), nn.Linear(72, 3), nn.Softmax(1))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    torch.manual_seed(0)
    info = {
        "model": "digits_net", "num_classes": 10, "input_shape": [1, 8, 8], "mean": [0.3], "std": [0.4],
        "classes": list("0123456789"), "data": "digits",
    }  # fmt: skip
    save_model(folder / "model", models.create("digits_net").eval(), info)
    code = main(["compile", str(folder / "model.json"), "--out", str(folder / "out"), "--images", "32"])
    assert code == 0
    return folder / "out"


def test_check_lists_problems_of_a_users_file_and_fails(tmp_path, capsys):
    file = tmp_path / "network.py"
    file.write_text(NETWORK)
    assert main(["check", f"{file}:build", "--input-shape", "1", "8", "8", "--json", "-"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [problem["operation"] for problem in problems] == ["Softmax", "Softmax"]
    assert main(["check", f"{file}:nothing", "--input-shape", "1", "8", "8"]) == 2
    assert main(["check", f"{file}:build"]) == 2
    assert main(["check", "digits_net"]) == 0


def test_compile_writes_the_owners_copy_and_three_bundles(compiled):
    program = load(compiled / "program")
    public = load_public(compiled / "public")
    assert public.info["class_names"] == list("0123456789")
    assert load_party(compiled / "party1", public).party == 1
    assert len(program.info["headroom"]) > 3


def test_compare_names_no_layer_for_a_sound_program(compiled, capsys):
    assert main(["compare", str(compiled), "--images", "2", "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["first_beyond_tolerance"] is None
    assert main(["compare", str(compiled), "--images", "2", "--tolerance", "1e-9"]) == 1
    assert "first layer beyond" in capsys.readouterr().out


def test_cost_gives_the_promised_keys(compiled, capsys):
    for source in (["--program", str(compiled)], ["--model", "digits_net", "--relus", "200", "--link", "wan"]):
        assert main(["cost", *source, "--json", "-"]) == 0
        result = json.loads(capsys.readouterr().out)
        for key in ("rounds", "online_bytes_per_party", "offline_bytes", "ring_multiplications"):
            assert result[key] > 0
        assert result["layers"]
    assert list(result["latency"]) == ["wan"]
    assert main(["cost"]) == 2
    assert main(["cost", "--program", str(compiled)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100
