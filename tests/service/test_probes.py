"""Known images among a client's own: a server that cheats is noticed, and an honest one is not accused."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from autorep.cli.compile import write_probes
from autorep.cli.main import main
from autorep.errors import CheatingError, ConfigError, DataError, ProtocolError
from autorep.modes import Program
from autorep.program.agreement import steady_answers
from autorep.program.answer import answering
from autorep.program.files import program_hash
from autorep.service import async_client
from autorep.service import probes as module
from autorep.service.answers import Prediction
from autorep.service.local import LocalDeployment
from autorep.service.probes import Probes
from autorep.service.web import post


@pytest.fixture
def probes(program: Program, tmp_path: Path) -> Probes:
    write_probes(program, np.random.default_rng(9).random((4, 1, 8, 8)), tmp_path / "probes.npz")
    return Probes.load(tmp_path / "probes.npz")


@pytest.fixture
def foreseeable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same places for probes in every run."""
    monkeypatch.setattr(module, "_CHANCE", random.Random(1))


def answered(values: np.ndarray) -> Prediction:
    return Prediction("", None, (), True, None, {}, values, 0.0, 0.0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("count", "rate", "probed"), [(1, 0.1, 1), (9, 0.1, 1), (10, 0.1, 2), (6, 0.5, 6), (1, 0.75, 3)]
)
def test_their_number_is_fixed_and_every_place_as_likely(probes: Probes, count: int, rate: float, probed: int) -> None:
    """Else a server could tell by the length or the place of a query that it is none."""
    own = np.random.default_rng(0).random((count, 1, 8, 8))
    places, runs = np.zeros(count + probed), 4000
    for _ in range(runs):
        mixed = probes.mix(own, rate)
        flags = np.array([number is not None for number in mixed.numbers])
        assert (flags.sum(), len(mixed.images)) == (probed, count + probed)
        places += flags
    np.testing.assert_array_equal(mixed.images[~flags], own)
    for image, number in zip(mixed.images, mixed.numbers):
        assert number is None or np.array_equal(image, probes.images[number])
    share = probed / (count + probed)
    assert share >= rate
    assert np.abs(places / runs - share).max() < 8 * (share * (1 - share) / runs) ** 0.5


def test_all_probes_have_their_turn_and_nothing_asked_is_nothing(probes: Probes) -> None:
    assert {*probes.mix(np.zeros((200, 1, 8, 8)), 0.5).numbers} == {None, 0, 1, 2, 3}
    assert len(probes.mix(np.zeros((0, 1, 8, 8)), 0.5).images) == 0


def test_one_wrong_probe_gives_no_answer_away(probes: Probes) -> None:
    mixed = probes.mix(np.zeros((40, 1, 8, 8)), 0.5)
    right = [answered(np.full(10, 7.0) if n is None else probes.values[n].copy()) for n in mixed.numbers]
    own, count = mixed.own(right)
    assert len(own) == 40
    assert count == len(mixed.numbers) - 40
    assert all(outcome.values[0] == 7 for outcome in own)
    place = next(i for i, number in enumerate(mixed.numbers) if number is not None)
    right[place].values[3] += probes.tolerance / 2
    mixed.own(right)
    right[place].values[3] += probes.tolerance
    with pytest.raises(CheatingError, match=f"1 of {count} probe images"):
        mixed.own(right)
    unanswered = [*right[:place], ProtocolError("away"), *right[place + 1 :]]
    assert mixed.own(unanswered)[1] == count - 1, "who does not answer is no cheat"


def test_answers_that_rounding_decides_are_no_probes(program: Program, images: np.ndarray) -> None:
    kept, values, tolerance = steady_answers(program, images)
    assert len(kept) == len(images)
    assert 0 < tolerance < 1e-2
    assert np.abs(program.run(images, "fixed") - values).max() <= tolerance
    head = program.output.name
    tied = {**program.parameters, f"{head}.bias": program.parameters[f"{head}.bias"].copy()}
    logits = program.run(images, "float")
    lead = np.diff(np.sort(logits[0])[-2:])[0]
    tied[f"{head}.bias"][np.argsort(logits[0])[-2]] += lead  # the first image's two best are equal now
    classes = answering(dataclasses.replace(program, parameters=tied), "class")
    kept, values, tolerance = steady_answers(classes, images, runs=24)
    assert tolerance == 0
    assert len(kept) == len(values) < len(images)
    assert not (kept == images[0]).all(axis=(1, 2, 3)).any()


def test_an_honest_pair_passes(
    deployment: LocalDeployment, probes: Probes, images: np.ndarray, program: Program, foreseeable: None
) -> None:
    with deployment.client(probes=probes, verify=0.5) as client:
        answers = client.predict(images[:4])
        assert client.verified == 4
    expected = program.run(images[:4], "fixed").argmax(1)
    assert [answer.label for answer in answers] == [f"digit {i}" for i in expected]


def test_a_server_that_shifts_its_answers_is_noticed(
    deployment: LocalDeployment,
    probes: Probes,
    images: np.ndarray,
    program: Program,
    foreseeable: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It adds one to the logit of class 3, whatever the image: a wrong answer that looks like any other."""

    async def shifted(server: httpx.AsyncClient, path: str, body: bytes, count: int, pair: Any) -> list[Any]:
        parts = await post(server, path, body, count, pair)
        if str(server.base_url).rstrip("/") != deployment.urls[1]:
            return parts
        spoilt = []
        for part in parts:
            words = np.frombuffer(part.share, "<u8").copy()
            words[3] += np.uint64(1 << program.output.frac)
            spoilt.append(dataclasses.replace(part, share=words.tobytes()))
        return spoilt

    monkeypatch.setattr(async_client, "post", shifted)
    with deployment.client(probes=probes, verify=0.5) as client, pytest.raises(CheatingError, match="trust none"):
        client.predict(images[:4])


def test_the_command_verifies(
    deployment: LocalDeployment, probes: Probes, images: np.ndarray, tmp_path: Path, foreseeable: None
) -> None:
    np.save(tmp_path / "some.npy", images[:4])
    probes.save(tmp_path / "again.npz")
    arguments = ["predict", str(tmp_path / "some.npy"), "--servers", *deployment.urls, "--ca", str(deployment.ca)]
    arguments += ["--probes", str(tmp_path / "again.npz"), "--verify", "0.5", "--json", str(tmp_path / "out.json")]
    assert main(arguments) == 0
    result = json.loads((tmp_path / "out.json").read_text())
    assert len(result["predictions"]) == 4
    assert result["probes"] == 4


def test_probes_of_another_program_or_no_probes_are_refused(
    deployment: LocalDeployment, probes: Probes, program: Program, images: np.ndarray, tmp_path: Path
) -> None:
    assert probes.program == program_hash(program)
    other = dataclasses.replace(probes, program="0" * 64)
    with deployment.client(probes=other) as client, pytest.raises(ConfigError, match="belong to program 0000"):
        client.predict(images[:1])
    for rate in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="between 0 and 1"):
            probes.mix(images, rate)
    with pytest.raises(ConfigError, match="shape"):
        probes.mix(np.zeros((1, 3, 8, 8)), 0.1)
    np.savez(tmp_path / "other.npz", images=images)
    for path in (tmp_path / "none.npz", tmp_path / "other.npz"):
        with pytest.raises(DataError, match="not a file of probes"):
            Probes.load(path)
