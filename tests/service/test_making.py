"""Servers that make their own kits while they serve: filling, pausing, faults, and kill -9 in every phase."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorep.cli.main import main
from autorep.modes import Program
from autorep.mpc.two_party.cost import make_frames, setup_frames
from autorep.mpc.two_party.names import with_owners_word
from autorep.program.files import split
from autorep.service.local import LocalDeployment
from autorep.service.making import wish
from autorep.service.prepare_together import AT_ONCE
from autorep.service.web import authority
from tests.mpc.programs import Builder
from tests.service.test_faults import OPTIONS, Proxy, kits_used

PATIENCE = 150.0


def tiny_program(seed: int = 0) -> Program:
    """Every kind of correlation, few of each."""
    b = Builder(seed, shape=(2, 4, 4))
    b.stem(2)
    b.conv(2, stride=2)
    b.activation(0.5)
    b.head(2)
    return with_owners_word(b.program())


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


class Together(LocalDeployment):
    """Two servers without a dealer; party 1 reaches party 0's making process through a proxy."""

    def __init__(self, program: Program, folder: Path, ahead: int, prepare: int = 2) -> None:
        options = (*OPTIONS, "--ahead", str(ahead))
        super().__init__(
            program, prepare=prepare, options=options, preparation="two-party", folder=folder, patience=240.0
        )
        self.program = program
        self.proxy = Proxy(int(self._supply.rpartition(":")[2]))
        self.address = self._supply
        self._web: httpx.Client | None = None

    def __exit__(self, *arguments: object) -> None:
        super().__exit__(*arguments)
        self.proxy.close()
        if self._web is not None:
            self._web.close()

    def _arguments(self, role: str) -> list[str]:
        own = super()._arguments(role)
        behind = f"127.0.0.1:{self.proxy.port}"
        return [behind if role == "party1" and each == self._supply else each for each in own]

    def figure(self, party: int, name: str) -> float:
        """One sample of a server's metrics; 0 where it is not there."""
        if self._web is None:
            self._web = httpx.Client(verify=authority(self.ca), timeout=60)
        try:
            text = self._web.get(f"{self.urls[party]}/metrics").text
        except httpx.HTTPError:
            return 0.0
        found = re.search(rf"^{name}{{.*}} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def ids(self, party: int) -> set[str]:
        return {path.name for path in (self.folder / f"store{party}").glob("*/ready/*")}

    def making_pid(self, party: int) -> int:
        """The making process of a server."""
        tasks, found = Path(f"/proc/{self.processes[f'party{party}'].pid}/task"), []

        def children() -> list[int]:
            with contextlib.suppress(OSError):  # a thread that ended meanwhile
                found[:] = [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
            return found

        until(children, f"party {party} has no making process")
        return found[0]

    def assert_answers_are_right(self) -> None:
        x = np.random.default_rng(3).normal(0, 1, (3, *self.program.input.shape))
        with self.client() as client:
            assert np.abs(client.logits(x) - self.program.run(x, "fixed")).max() < 5e-3
        for role in ("party0", "party1"):
            used = kits_used(self, role)
            assert len(used) == len(set(used)), f"{role} used a kit twice"

    def made(self, party: int = 0) -> float:
        return self.figure(party, "autorep_making_kits_total")

    def wait_made(self, more: int) -> None:
        """Wait until further kits were made: long, since a busy machine gives a process of low priority little."""
        before = self.made(0)
        try:
            until(lambda: self.made(0) >= before + more, "no kits are made", 600.0)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self._tail('party0')} {self._tail('party1')}") from None


@given(st.integers(0, 100), st.integers(0, 4), st.integers(0, 100))
def test_wishes_are_batches_and_end_at_a_full_store(stored: int, ready: int, ahead: int) -> None:
    count = wish(stored, ready, ahead)
    assert 0 <= count <= min(AT_ONCE, max(0, ahead - stored))
    assert (count > 0) or ahead - stored < AT_ONCE
    assert count <= 1 or stored + ready
    while more := wish(stored, ready, ahead):
        stored += more
    assert stored > ahead - AT_ONCE
    assert stored >= min(ahead, AT_ONCE)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Together]:
    with Together(tiny_program(), tmp_path_factory.mktemp("together"), ahead=10) as running:
        yield running


def settled(deployment: Together) -> bool:
    """Both stores hold the same kits, as many as are kept ahead but for less than a batch."""
    return deployment.ids(0) == deployment.ids(1) and wish(len(deployment.ids(0)), 1, 10) == 0


def at_rest(deployment: Together) -> bool:
    """Settled, and so it stays."""
    states = []
    for pause in (2.0, 0.0):
        states.append((deployment.ids(0), deployment.ids(1), deployment.made()))
        time.sleep(pause)
    return states[0] == states[1] and settled(deployment)


def test_stores_fill_pause_and_fill_again(together: Together) -> None:
    until(lambda: at_rest(together), "the stores were not filled, or full ones are filled on")
    made, sent = together.made(), together.figure(1, "autorep_making_sent_bytes_total")
    assert made > 0
    assert sent > 0
    for name in ("autorep_making_seconds_total", "autorep_making_cpu_seconds_total", "autorep_making_connected"):
        assert together.figure(0, name) > 0
    together.assert_answers_are_right()
    together.assert_answers_are_right()
    until(lambda: together.made() > made and settled(together), "used kits were not replaced")


def test_ping_reaches_the_making_process_and_names_what_is_wrong(
    together: Together, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["ping", "--keys", str(together.folder / "keys" / "party1"), "--making", together.address]
    assert main([*arguments, "--bundle", str(together.folder / "bundle")]) == 0
    assert "makes kits for this program" in capsys.readouterr().out
    split(tiny_program(7), tmp_path / "other")
    assert main([*arguments, "--bundle", str(tmp_path / "other")]) == 1
    assert "makes no kits for program" in capsys.readouterr().out
    arguments[-1] = "127.0.0.1:9"
    assert main([*arguments, "--bundle", str(together.folder / "bundle")]) == 1
    assert "refused" in capsys.readouterr().out


def test_making_goes_on_after_a_cut_link_and_a_killed_process(together: Together) -> None:
    failures = together.figure(0, "autorep_making_failures_total")
    together.proxy.cut()
    until(lambda: together.figure(0, "autorep_making_failures_total") > failures, "the cut was not noticed")
    until(lambda: together.figure(0, "autorep_making_connected") == 1, "the link did not come back")
    for party in (0, 1):
        os.kill(together.making_pid(party), signal.SIGKILL)
        made = together.made()
        together.assert_answers_are_right()  # on what is stored: the server itself goes on
        together.assert_answers_are_right()
        until(lambda made=made: together.made() > made, f"nothing is made after party {party}'s was killed")  # type: ignore[misc]
    until(lambda: settled(together), "the stores were not filled after kills")
    for role in ("party0", "party1"):
        assert "SIGKILL" in together.log(role).read_text()


def test_reload_starts_the_process_anew(together: Together) -> None:
    before = [together.making_pid(party) for party in (0, 1)]
    for party in (0, 1):
        together.processes[f"party{party}"].send_signal(signal.SIGHUP)

    def renewed() -> bool:
        return all(together.making_pid(party) != before[party] for party in (0, 1))

    until(renewed, "the making processes were not started anew")
    until(lambda: together.figure(0, "autorep_making_connected") == 1, "they did not find each other")
    assert not any(pid in before for pid in (together.making_pid(0), together.making_pid(1)))
    together.assert_answers_are_right()


def test_a_full_disk_pauses_and_is_survived(together: Together) -> None:
    until(lambda: settled(together), "the stores were not filled")
    (folder,) = (together.folder / "store1").glob("*/incoming")
    moved = folder.with_name("elsewhere")
    folder.rename(moved)  # writing fails from now on, as on a full disk
    for _ in range(2):
        together.assert_answers_are_right()  # uses more than a batch of kits, so that others are made
    until(lambda: "kit not stored" in together.log("party1").read_text(), "nobody noticed the full disk")
    moved.rename(folder)
    until(lambda: settled(together), "the stores were not filled once there was room again")
    together.assert_answers_are_right()


# ---------------------------------------------------------------------- kill -9 in every phase

# Runs in every process of the deployment; only making processes have something to do.
SABOTAGE = """
import os, signal, sys
from pathlib import Path
if "autorep.service.making_process" in sys.orig_argv:
    from autorep.mpc import transport
    order, step = Path({order!r}), transport.Transport._step
    def fatal(link, kind, label, payload, reader):
        if order.exists():
            due, party, whom = order.read_text().split()
            if due == label and party == os.environ["AUTOREP_TEST_PARTY"]:
                order.unlink()
                if whom == "server":
                    os.kill(os.getppid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
        return step(link, kind, label, payload, reader)
    transport.Transport._step = fatal
"""


class Killable(Together):
    """Its making processes kill themselves, or their server too, at the step that an order names."""

    def __init__(self, program: Program, folder: Path) -> None:
        super().__init__(program, folder, ahead=10_000)
        self._order = folder / "order"
        self._once = {"hello", *(frame.label for frame in setup_frames(program))}  # phases of a new link
        (folder / "path").mkdir()
        (folder / "path" / "sitecustomize.py").write_text(SABOTAGE.format(order=str(self._order)))

    def start(self, role: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(self.folder / "path"))
            patch.setenv("AUTOREP_TEST_PARTY", role[-1])
            super().start(role)

    def kill_at(self, label: str, party: int, whom: str) -> None:
        """Kill in this phase, then wait until kits are made again."""
        draft = self._order.with_suffix(".new")
        draft.write_text(f"{label} {party} {whom}")
        draft.rename(self._order)
        if label in self._once:
            self.proxy.cut()
        until(lambda: not self._order.exists(), f"phase {label} of party {party} was not reached")
        if whom == "server":
            self.processes[f"party{party}"].wait(100)
            self.start(f"party{party}")
        self.wait_made(2)


def phases(program: Program) -> list[str]:
    """Every label of making, in order; of the many rounds of comparisons the first and the last."""
    labels = ["hello", "message"]
    labels += [frame.label for frame in (*setup_frames(program), *make_frames(program))]
    rounds = [label for label in labels if label.startswith("bits/")]
    inner = set(rounds) - {rounds[0], rounds[-1]}
    return [label for label in dict.fromkeys(labels) if label not in inner]


def kill_in(deployment: Killable, orders: list[tuple[str, int, str]]) -> None:
    for label, party, whom in orders:
        deployment.kill_at(label, party, whom)
    deployment.assert_answers_are_right()
    lonely = deployment.ids(0) ^ deployment.ids(1)  # left over, but for some that are on their way right now
    for _ in range(2):  # stores are compared on every new link; what came since the last time is spared once
        deployment.proxy.cut()
        deployment.wait_made(2)
    until(lambda: not lonely & (deployment.ids(0) ^ deployment.ids(1)), "kits without a partner stay")


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killable]:
    with Killable(tiny_program(), tmp_path_factory.mktemp("killable")) as running:
        yield running


def test_kill_9_in_some_phases(killable: Killable) -> None:
    kill_in(
        killable,
        [("quadratic/q", 1, "process"), ("message", 0, "process"), ("linear/request", 0, "server")],
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("party", [0, 1])
def test_kill_9_in_every_phase(killable: Killable, party: int) -> None:
    """In turn the making process alone and the server with it; at the other party the other way round."""
    whom = ("process", "server")
    kill_in(
        killable, [(label, party, whom[(number + party) % 2]) for number, label in enumerate(phases(tiny_program()))]
    )
