"""What further threads give one party alone: the same query on one thread and on more, taking turns.

The other party is silent, so that both cores of a small machine belong to this one. Seconds are of the wall; of every
operation the least is taken, which other processes spoil last.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from autorep import _native
from autorep.mpc.local import share_input
from autorep.mpc.rehearsal import Silence, alone
from autorep.program.ir import Activation, Program


def measure(program: Program, threads: int = 2, repeats: int = 20) -> dict[str, Any]:
    """Dealer, preparation, and online linear layers and activations, after one query of each kind that warms up."""
    (dealer, party), images = alone(program), np.zeros((1, *program.input.shape))
    before, counts = _native.get_threads(), (1, threads)
    least: dict[tuple[str, str], list[float]] = {}  # part and operation -> seconds by number of threads
    try:
        for number in range(2 * (repeats + 1)):
            _native.set_threads(counts[number % 2])
            marks = [time.perf_counter()]
            kit = dealer.deal(1).kits[0]
            marks.append(time.perf_counter())
            query = party.prepare(party.source(kit))
            marks.append(time.perf_counter())
            party.run(Silence(), query, share_input(program, images)[0])
            spent = {("dealer", ""): marks[1] - marks[0], ("prepare", ""): marks[2] - marks[1]}
            for name, seconds in query.seconds.items():
                kind = "activations" if isinstance(program[name], Activation) else "linear layers and others"
                spent[f"online, {kind}", name] = seconds
            for key, seconds in spent.items() if number > 1 else ():
                known = least.setdefault(key, [float("inf")] * 2)
                known[number % 2] = min(known[number % 2], seconds)
    finally:
        _native.set_threads(before)
    rows = []
    for part in dict.fromkeys(part for part, _ in least):
        one, more = (sum(s[i] for (of, _), s in least.items() if of == part) for i in (0, 1))
        rows.append({"part": part, "seconds": one, "with_threads": more, "ratio": one / more})
    common = {"network": program.info["name"], "relus": program.relu_count, "threads": threads, "repeats": repeats}
    return {**common, "rows": rows}
