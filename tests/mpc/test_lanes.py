"""Several queries in flight between the same two parties, each over its own link."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from autorep.mpc.local import LocalPair, join_output, share_input
from autorep.mpc.transport import memory_pair
from autorep.program.fixed import run_fixed
from tests.mpc.programs import mixed_program, prepare

LANES, QUERIES = 4, 12


def test_concurrent_queries_do_not_mix():
    program = mixed_program(11)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(0, 1, (1 + i % 2, *program.input.shape)) for i in range(QUERIES)]
    with LocalPair(program) as pair, ThreadPoolExecutor(2 * LANES) as threads:
        links = [memory_pair(120.0) for _ in range(LANES)]

        def serve(party: int, lane: int, work: list) -> list[np.ndarray]:
            prepared = [(prepare(pair.parties[party], kits[party]), shares[party]) for kits, shares in work]
            return [pair.parties[party].run(links[lane][party], query, share) for query, share in prepared]

        work = [(pair.dealer.deal(len(x)).kits, share_input(program, x)) for x in inputs]
        futures = [[threads.submit(serve, p, lane, work[lane::LANES]) for p in (0, 1)] for lane in range(LANES)]
        for lane, (first, second) in enumerate(futures):
            for x, share0, share1 in zip(inputs[lane::LANES], first.result(), second.result(), strict=True):
                assert np.abs(join_output(program, share0, share1) - run_fixed(program, x)).max() < 5e-3
