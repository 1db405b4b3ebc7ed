"""After a run, a server's memory, disk and log contain neither image nor weights nor answer in clear."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autorep.program.ir import Program, encode
from autorep.service.client import Client
from autorep.service.local import LocalDeployment


def memory_of(pid: int) -> list[bytes]:
    """Every readable, private part of a process's memory."""
    parts = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights, _, _, inode, *_ = line.split()
            if not rights.startswith("rw") or inode != "0":
                continue
            start, end = (int(edge, 16) for edge in span.split("-"))
            memory.seek(start)
            try:
                parts.append(memory.read(end - start))
            except OSError:
                continue  # a guard page
    return parts


def patterns(values: np.ndarray, frac: int) -> dict[str, bytes]:
    """A run of values in every form in which it could lie about."""
    run = np.asarray(values, np.float64).reshape(-1)[:8]
    return {
        "fixed point": encode(run, frac).tobytes(),
        "float64": run.tobytes(),
        "float32": run.astype(np.float32).tobytes(),
        "text": ", ".join(f"{value:.5f}" for value in run[:3]).encode(),
    }


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="reads /proc/PID/mem, which only Linux has")
def test_no_server_holds_image_weights_or_answer(deployment: LocalDeployment, client: Client, program: Program) -> None:
    image = np.random.default_rng(77).random((1, 1, 8, 8))
    answers = [client.predict(image)[0] for _ in range(4)]
    convolution = next(op for op in program.ops if f"{op.name}.weight" in program.parameters)
    weights = program.parameters[f"{convolution.name}.weight"]
    secrets = {
        "image": patterns(image, program.input.frac),
        "weights": patterns(weights, convolution.parameter_frac("weight")),
        **{f"answer {i}": patterns(answer.logits, program.output.frac) for i, answer in enumerate(answers)},
    }
    known = client.description.program.encode()
    for index, role in enumerate(("party0", "party1")):
        memory = memory_of(deployment.processes[role].pid)
        assert any(known in part for part in memory), "the search itself does not work"
        files = [path for path in (deployment.folder / f"store{index}").rglob("*") if path.is_file()]
        files += [deployment.log(role), *(deployment.folder / "bundle" / role).iterdir()]
        places = {"memory": memory, "files": [path.read_bytes() for path in files]}
        for place, parts in places.items():
            for what, forms in secrets.items():
                for form, pattern in forms.items():
                    assert not any(pattern in part for part in parts), f"{role}: {what} as {form} in {place}"


def test_the_search_finds_what_is_there(program: Program) -> None:
    convolution = next(op for op in program.ops if f"{op.name}.weight" in program.parameters)
    weights = program.parameters[f"{convolution.name}.weight"]
    words = program.encoded(convolution, "weight").tobytes()
    assert patterns(weights, convolution.parameter_frac("weight"))["fixed point"] in words
