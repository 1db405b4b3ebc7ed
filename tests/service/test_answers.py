"""Answers without logits, and answers out of range: what the clients, the command and the page make of them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from autorep.cli.main import main
from autorep.compiler.compile import compile_program
from autorep.errors import ConfigError
from autorep.modes import Program
from autorep.program.answer import answering
from autorep.program.ir import encode
from autorep.service.answers import Description, Part, prediction
from autorep.service.local import LocalDeployment

from .conftest import small_program

PAGE = Path(__file__).parents[2] / "src" / "autorep" / "service" / "page"
LIMIT = {"output_limit": 10.0, "class_names": ["cat", "dog", "emu"]}


def checked(gives: str) -> dict[str, object]:
    return LIMIT | {"answer": {"gives": gives, "checked": True}}


CASES = {  # info, values, best classes, in range
    "logits": (LIMIT, [1.0, 3.0, -2.0], [1, 0, 2], True),
    "logits beyond": (LIMIT, [1.0, 30.0, -2.0], [1, 0, 2], False),
    "logits checked": (checked("logits"), [1.0, 3.0, 4.0, 1.0], [2, 1, 0], True),
    "logits flagged": (checked("logits"), [1.0, 3.0, 4.0, 0.0], [2, 1, 0], False),
    "logits of two outputs": (LIMIT | {"outputs": {"kind": 3, "age": 1}}, [1.0, 3.0, -2.0, 9.0], [1, 0, 2], True),
    "class": (checked("class"), [2.0, 1.0], [2], True),
    "class flagged": (checked("class"), [2.0, 0.0], [2], False),
    "classes": (checked("top-5"), [2.0, 0.0, 1.0, 1.0], [2, 0, 1], True),
}


@pytest.mark.parametrize("case", CASES)
def test_every_answer_is_read_alike_by_the_client(case: str) -> None:
    info, values, best, in_range = CASES[case]
    words = encode(values, 16)
    mask = np.arange(len(values), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    parts = [Part(half.tobytes(), 0.1, 1, 1, 1) for half in (mask, words - mask)]
    found = prediction(parts, Description("", (1,), 16, 44, 16, info), 5, 0.2, 1)
    assert [label for label, _ in found.top] == [LIMIT["class_names"][i] for i in best]
    assert found.in_range is in_range
    gives_logits = case.startswith("logits")
    assert (found.logits is not None, found.probability is not None) == (gives_logits, gives_logits)


def test_every_answer_is_read_alike_by_the_page() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node is installed")
    script = (
        f"import {{ readAnswer }} from {json.dumps(str(PAGE / 'answers.js'))};"
        f"const cases = {json.dumps([case[:2] for case in CASES.values()])};"
        "console.log(JSON.stringify(cases.map(([info, values]) => readAnswer(values, info))));"
    )
    done = subprocess.run([node, "--input-type=module", "-e", script], capture_output=True, check=True, text=True)
    for (name, (_, _, best, in_range)), found in zip(CASES.items(), json.loads(done.stdout), strict=True):
        assert [index for index, _ in found["best"]] == best, name
        assert found["inRange"] is in_range, name
        assert all((probability is not None) == name.startswith("logits") for _, probability in found["best"]), name


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[LocalDeployment, Program]]:
    """Servers that give the class alone; clients may ask with whatever they like."""
    plain = small_program()
    program = answering(dataclasses.replace(plain, info={**plain.info, "input_range": [-99, 99]}), "class")
    with LocalDeployment(program, prepare=4) as running:
        yield running, plain


def test_a_client_learns_the_class_alone(asked: tuple[LocalDeployment, Program], images: np.ndarray) -> None:
    deployment, plain = asked
    with deployment.client() as client:
        answers = client.predict(np.concatenate([images[:6], 20 * images[:1]]), top=5)
        with pytest.raises(ConfigError, match="classes only"):
            client.logits(images[:1])
    expected = plain.run(images[:6], "fixed").argmax(1)
    assert [answer.top for answer in answers[:6]] == [((f"digit {i}", None),) for i in expected]
    assert all(answer.logits is None and answer.probability is None for answer in answers)
    assert [answer.in_range for answer in answers] == [True] * 6 + [False]


def test_the_command_shows_classes_and_names_none_out_of_range(
    asked: tuple[LocalDeployment, Program], images: np.ndarray, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment, plain = asked
    np.save(tmp_path / "some.npy", np.stack([images[0], 20 * images[0]]))
    common = ["predict", str(tmp_path / "some.npy"), "--servers", *deployment.urls, "--ca", str(deployment.ca)]
    assert main(common) == 0
    near, far = (line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("some.npy["))
    assert f"digit {plain.run(images[:1], 'fixed').argmax()}" in near
    assert "%" not in near
    assert "out of range" in far
    assert "digit" not in far
    assert main([*common, "--json", str(tmp_path / "answers.json")]) == 0
    assert "1 out of range" in capsys.readouterr().out
    rows = json.loads((tmp_path / "answers.json").read_text())["predictions"]
    assert [row["in_range"] for row in rows] == [True, False]
    assert all(row["logits"] is None and row["probability"] is None for row in rows)


class TwoHeads(nn.Module):
    """A tuple of logits, as networks with an auxiliary head return it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.kind, self.age = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Linear(64, 3), nn.Linear(64, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = torch.relu(self.stem(x)).flatten(1)
        return self.kind(features), 5 * self.age(features)


def test_servers_answer_with_every_output_of_a_network(images: np.ndarray) -> None:
    torch.manual_seed(0)
    model = TwoHeads().eval()
    program = compile_program(model, torch.rand(64, 1, 8, 8), class_names=["ant", "bee", "fly", "young", "old"])
    with LocalDeployment(program, prepare=4) as deployment, deployment.client() as client:
        answers = client.predict(images[:4], top=3)
    with torch.no_grad():
        kind, age = (value.numpy() for value in model(torch.from_numpy(images[:4]).float()))
    for number, answer in enumerate(answers):
        assert list(answer.outputs) == ["0", "1"]
        np.testing.assert_allclose(answer.outputs["0"], kind[number], atol=2e-3)
        np.testing.assert_allclose(answer.outputs["1"], age[number], atol=2e-3)
        assert answer.label == ["ant", "bee", "fly"][kind[number].argmax()]
        assert {label for label, _ in answer.top} == {"ant", "bee", "fly"}
        assert sum(share for _, share in answer.top) == pytest.approx(1)
