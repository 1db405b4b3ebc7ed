"""Threads that must not die: each repeats its work for as long as the server lives, and says how it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

from autorep.errors import AutorepError
from autorep.service.logs import crash, trouble

FIRST_WAIT, LONGEST_WAIT = 0.1, 1.0  # a peer that comes back is found within a second
_STEADY = 10.0  # seconds after which an attempt counts as a success


class Worker(threading.Thread):
    """Repeats `attempt` until `over` is set, with growing pauses between failures.

    An error the project knows (a peer that is away) is logged; any other one is also a crash: counted, logged with its
    trace, and reported as this worker's problem until an attempt lasts or ends well.

    Args:
        name: of the thread, and in the log.
        attempt: one try; it returns when it is time for the next one.
        over: ends the worker.
        crashed: counts crashes; after_failure: hears every failure.
        fields: public facts for the log.
    """

    def __init__(
        self,
        name: str,
        attempt: Callable[[], None],
        over: threading.Event,
        crashed: Callable[[], None] = lambda: None,
        after_failure: Callable[[Exception], None] = lambda error: None,
        **fields: object,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._attempt, self._over, self._crashed, self._after_failure = attempt, over, crashed, after_failure
        self._fields = fields
        self._crash: str | None = None
        self._began = 0.0

    @property
    def problem(self) -> str | None:
        """Why this worker does not do its work, or None."""
        if self._over.is_set():
            return None
        if self.ident is not None and not self.is_alive():
            return "it is gone"
        return None if time.monotonic() - self._began > _STEADY else self._crash

    def run(self) -> None:
        wait = FIRST_WAIT
        while not self._over.is_set():
            self._began = time.monotonic()
            failure: Exception
            try:
                self._attempt()
                self._crash, wait = None, FIRST_WAIT
                continue
            except AutorepError as error:
                self._crash, failure = None, error
                trouble(self.name, error, **self._fields)
            except Exception as error:  # whatever it is, the work goes on; its operator sees what happened
                self._crash, failure = f"{type(error).__name__}: {error}", error
                crash(self.name, error, **self._fields)
                self._crashed()
            self._after_failure(failure)
            if time.monotonic() - self._began > _STEADY:
                wait = FIRST_WAIT
            self._over.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT)


async def repeat(
    name: str, action: Callable[[], None], seconds: float, crashed: Callable[[], None] = lambda: None
) -> None:
    """Call `action` every so many seconds on the event loop, for ever, whatever it raises."""
    while True:
        await asyncio.sleep(seconds)
        try:
            action()
        except Exception as error:  # logged and counted; without the next one the server would only seem to work
            crash(name, error)
            crashed()


@contextlib.contextmanager
def meanwhile(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` every so many seconds, in a thread of its own, while the block takes its time."""
    done = threading.Event()

    def repeat() -> None:
        while not done.wait(seconds):
            action()

    thread = threading.Thread(target=repeat, name="autorep-meanwhile", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def end_process() -> NoReturn:
    """End a process whose work is done, with code 0, whatever its threads are doing.

    The interpreter must not be taken down under them: one that computes in native code and asks for the interpreter's
    lock back would have its stack unwound, which C++ answers by aborting the process.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
