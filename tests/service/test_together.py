"""Queries of different clients in one run: everybody gets the answer to its own image, whatever the others sent."""

from __future__ import annotations

import re
import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from autorep.errors import MaterialError
from autorep.modes import Program
from autorep.mpc.kit import batch_of, kit_id
from autorep.mpc.local import LocalPair, join_output, share_input
from autorep.mpc.store import Store
from autorep.mpc.transport import memory_pair
from autorep.program.files import program_hash
from autorep.service.local import LocalDeployment
from autorep.service.queries import Answer
from autorep.service.session import Job, Kit


def run_together(program: Program, halves: list[tuple[np.ndarray, np.ndarray]], batch: int) -> list[list[Answer]]:
    """Both servers' answers to queries that run with one kit."""
    links = memory_pair()
    keys = tuple(f"client:{number}" for number in range(len(halves)))
    with LocalPair(program) as pair, ThreadPoolExecutor(2) as pool:
        data = pair.kits(batch)

        def one(party: int) -> list[Answer]:
            server = pair.parties[party]
            kit = Kit(server.prepare(server.source(data[party])), len(data[party]))
            job = Job(keys, "00", server, kit, [half[party] for half in halves])
            return list(job.run(links[party]))

        return list(pool.map(one, (0, 1)))


@pytest.mark.parametrize(("batch", "count"), [(1, 1), (4, 4), (4, 3), (4, 1)])
def test_everyone_gets_its_own_answer_and_garbage_spoils_only_itself(program: Program, batch: int, count: int) -> None:
    rng = np.random.default_rng(batch + count)
    images = rng.random((count, 1, 8, 8))
    halves = [share_input(program, image[None]) for image in images]
    garbage = count - 1 if count > 1 else None
    if garbage is not None:  # a half that is not the other one's partner: an image of uniform 64-bit values
        halves[garbage] = (rng.integers(0, 2**64, halves[0][0].shape, np.uint64), halves[garbage][1])
    first, second = run_together(program, halves, batch)
    assert len(first) == len(second) == count
    expected = program.run(images, "fixed")
    for number in range(count):
        logits = join_output(program, first[number].share, second[number].share)[0]
        right = np.abs(logits - expected[number]).max() < 1e-3
        assert right == (number != garbage)
    alone, _ = run_together(program, halves[:1], 1)
    assert first[0].traffic.rounds == alone[0].traffic.rounds, "a batch takes no more rounds"


def test_answers_of_a_deployment_under_a_crowd_are_right_and_many_share_a_run(
    deployment: LocalDeployment, program: Program
) -> None:
    images = np.random.default_rng(3).random((6, 8, 1, 8, 8))
    expected = [program.run(batch, "fixed") for batch in images]

    def runs() -> float:
        context = ssl.create_default_context(cafile=str(deployment.ca))
        text = httpx.get(f"{deployment.urls[0]}/metrics", verify=context, timeout=100).text
        found = re.search(r"^autorep_runs_total\{.*\} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def ask(batch: np.ndarray) -> np.ndarray:
        with deployment.client(concurrency=8) as own:
            return own.logits(batch)

    for _ in range(30):  # the first kits for several queries come when there is a crowd
        before = runs()
        with ThreadPoolExecutor(len(images)) as pool:
            for found, right in zip(pool.map(ask, images), expected):
                assert np.abs(found - right).max() < 1e-3
        if runs() - before <= 48 - 6:
            return
    raise AssertionError("48 queries at once shared no runs, thirty times")


def test_a_kit_is_for_as_many_images_as_its_id_says(program: Program, tmp_path_factory: pytest.TempPathFactory) -> None:
    with LocalPair(program) as pair:
        dealt = pair.dealer.deal(4)
        assert batch_of(dealt.kit_id) == 4
        assert batch_of(pair.dealer.deal(1).kit_id) == 1
        store = Store(tmp_path_factory.mktemp("store") / "x", bytes.fromhex(program_hash(program)))
        store.put(dealt.kit_id, dealt.kits[0])
        assert store.ids() == [dealt.kit_id]
        relabelled = kit_id(dealt.kit_id[:8], 1, dealt.kit_id[9:])
        kit = bytearray(pair.dealer.deal(4).kits[0])
        with pytest.raises(MaterialError):
            store.put(relabelled, bytes(kit))
        store.close()
