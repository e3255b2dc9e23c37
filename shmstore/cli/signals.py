"""SIGTERM, SIGHUP and Ctrl-C for commands that run until they are stopped.

Plan. Python calls a signal's handler in the main thread, between two bytecodes of whatever that does there. So a handler that takes a lock,
as `threading.Event.set` does, waits forever where the main thread holds the lock; and while the main thread waits in C code, a signal that the
system gave to another thread calls no handler. Therefore the handlers here stop nothing. C code writes each signal's number into a pipe at once, in
whichever thread the signal came (`signal.set_wakeup_fd`), and a thread reads the pipe and stops the command, as any thread may.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_END: Final = b"\0"  # no signal has this number


@contextmanager
def on_signal(
    stop: Callable[[], None], reload: Callable[[], None] | None = None, *, patience: float | None = None
) -> Iterator[list[int]]:
    """Call `stop`, in a thread, on SIGTERM, Ctrl-C, and SIGHUP unless that is ignored, as by nohup; a second Ctrl-C interrupts at once. With `reload`
    SIGHUP calls that instead. A block that has not ended `patience` seconds after `stop` is interrupted too: it may wait for another host.

    Yields the list of the signals that ended the command. A command says that it is ready inside the block: its reader may send a signal at once.
    """
    came: list[int] = []
    interrupts = 0
    over = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if number == signal.SIGINT and interrupts > 1:
            raise KeyboardInterrupt

    def work() -> None:
        nonlocal interrupts
        left: float | None = None  # seconds until the block is interrupted
        own = False  # whether the next Ctrl-C is this thread's
        while True:
            readable, _, _ = select.select([reading], [], [], left)
            if not readable:
                left = None
                if not over:
                    interrupts, own = 1, True
                    signal.pthread_kill(main, signal.SIGINT)
                continue
            numbers = os.read(reading, 512)
            for number in numbers.rstrip(_END):
                if number == signal.SIGINT and own:
                    own = False
                elif number == signal.SIGHUP and reload is not None:
                    reload()
                elif number in handled:
                    came.append(number)
                    stop()
                    left = patience
            if numbers.endswith(_END):
                return

    handled = [signal.SIGINT, signal.SIGTERM]
    if reload is not None or signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled.append(signal.SIGHUP)
    main = threading.get_ident()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    thread = threading.Thread(target=work, name="signals", daemon=True)
    thread.start()
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield came
    finally:
        over = True
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        os.set_blocking(writing, True)
        os.write(writing, _END)
        thread.join()  # `came` has all, and `stop` is not called once what it stops is closed
        os.close(writing)
        os.close(reading)


def ended(came: list[int]) -> int:
    """Exit code of an orderly end after these signals: Ctrl-C is 130, SIGTERM, SIGHUP and none are 0."""
    return 130 if signal.SIGINT in came else 0
