"""Large blocks of memory, each lent again once nobody looks into it any more.

The C library gives what is larger than 32 MiB back to the system when it is freed. Its pages come anew, and cleared,
for the next block: a tenth of all the time that a large kit takes, and at some moments much more on a virtual machine
whose host takes free pages away.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque

import numpy as np

SMALLEST, LARGEST = 32 << 20, 128 << 20  # bytes; others are not kept
_SPARE: deque[np.ndarray] = deque(maxlen=2)


def block(size: int) -> memoryview:
    """So many bytes, which hold anything."""
    if not SMALLEST <= size <= LARGEST:
        return np.empty(size, np.uint8).data
    memory = _spare(size)
    # Whatever looks into the block keeps `lent` alive, and nothing else does.
    lent = (ctypes.c_uint8 * size).from_buffer(memory.data)
    weakref.finalize(lent, _SPARE.append, memory)
    return np.frombuffer(memoryview(lent), np.uint8).data


def _spare(size: int) -> np.ndarray:
    for _ in range(len(_SPARE)):
        try:
            memory = _SPARE.popleft()
        except IndexError:  # another thread was faster
            break
        if memory.nbytes == size:
            return memory
        _SPARE.append(memory)
    return np.empty(size, np.uint8)
