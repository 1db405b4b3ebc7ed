"""Threads, instruction-set levels and memory of the native module."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

from autorep import _native


def test_thread_count_is_kept_and_checked() -> None:
    assert _native.get_threads() == 1
    _native.set_threads(2)
    try:
        assert _native.get_threads() == 2
    finally:
        _native.set_threads(1)
    with pytest.raises(ValueError, match="at least 1"):
        _native.set_threads(0)


def test_level_is_known_and_checked(level: str) -> None:
    assert _native.simd() == level.removesuffix("-aesni")
    with pytest.raises(ValueError, match="valid are auto, avx512, avx2, avx2-aesni, neon, portable"):
        _native.set_simd("sse9")


def test_kernels_run_side_by_side_on_two_python_threads(level: str) -> None:
    rng = np.random.default_rng(0)
    weight, x = (rng.integers(0, 2**64, shape, dtype=np.uint64) for shape in ((16, 8, 3, 3), (2, 8, 9, 9)))
    conv = _native.PackedConv(weight, (8, 9, 9), padding=(1, 1), bits=44)
    expected = conv.run(x)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            if not np.array_equal(conv.run(x), expected):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


SPLIT = """
import os, sys, threading
import numpy as np
from autorep import _native
rng = np.random.default_rng(0)
weight, x = (rng.integers(0, 2**64, shape, dtype=np.uint64) for shape in ((64, 16, 3, 3), (2, 16, 24, 24)))
conv = _native.PackedConv(weight, (16, 24, 24), padding=(1, 1), bits=44)
expected = conv.run(x)
_native.set_threads(3)
def right(): return all(np.array_equal(conv.run(x), expected) for _ in range(20))
"""


def split(code: str) -> str:
    """What a process prints whose kernels have three threads; a deadlock ends by the time-out."""
    variables = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # no memory is set aside for a thread before it asks
    command = [sys.executable, "-c", SPLIT + code]
    return subprocess.check_output(command, timeout=600, text=True, env=variables).strip()


def test_several_callers_share_the_threads_of_the_pool() -> None:
    code = """
found = []
callers = [threading.Thread(target=lambda: found.append(right())) for _ in range(4)]
for caller in callers: caller.start()
for caller in callers: caller.join()
print(found)
"""
    assert split(code) == str([True] * 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_has_threads_of_its_own() -> None:
    code = """
assert right()
child = os.fork()
if child == 0: os._exit(0 if right() else 1)
print(os.waitpid(child, 0)[1], right())
"""
    assert split(code) == "0 True"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by what Linux tells of a process")
def test_a_kernel_that_fails_in_a_helper_thread_fails_in_its_caller() -> None:
    """The caller has its buffers, a helper needs some of its own and gets none; afterwards all is as before."""
    code = """
import resource
def held(): return int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
taps, wide = (rng.integers(0, 2**64, shape, dtype=np.uint64) for shape in ((64, 1, 3, 3), (1, 64, 12, 32768)))
large, out = _native.PackedConv(taps, wide.shape[1:], padding=(1, 1), groups=64), np.empty_like(wide)
_native.set_threads(1)
alone = large.run(wide).copy()
_native.set_threads(3)
assert right()
limit = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (held() + (4 << 20), limit[1]))
failed = 0
for _ in range(200):
    try: large.run(wide, out)
    except MemoryError: failed += 1
    if failed == 3: break
resource.setrlimit(resource.RLIMIT_AS, limit)
out[:] = 0
print(failed, np.array_equal(large.run(wide, out), alone), right())
"""
    assert split(code) == "3 True True"


def test_kept_memory_is_not_mapped_again() -> None:
    code = """
import resource, sys
import numpy as np
from autorep import _native
kept = _native.keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3): np.ones(1 << 20)
before = faults()
for _ in range(20): np.ones(1 << 20)
print(int(kept), faults() - before)
"""
    kept, faults = map(int, subprocess.check_output([sys.executable, "-c", code]).split())
    if not kept:
        pytest.skip("this C library offers no such setting")
    pages = 20 * 8 * 2**20 // resource.getpagesize()
    assert faults < pages / 10
