"""The end of `replicator backup` and `restore` by an error or a signal, in one line."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from replicator.backup.errors import BackupError
from replicator.cli.target import CommandError
from replicator.errors import ConfigError, DataError

END_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Turn operating errors, interrupts and signals into a CommandError that says what happened to `what`.

    By then the block has cleaned up. Defects pass through.
    """
    try:
        with _interrupted_by_signals(what):
            yield
    except (BackupError, ConfigError, DataError) as error:
        raise CommandError(f"{what} failed: {error}") from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{what} failed: {where}{error.strerror or error}") from error
    except sqlite3.Error as error:
        raise CommandError(f"{what} failed: the database: {error}") from error


@contextmanager
def _interrupted_by_signals(what: str) -> Iterator[None]:
    """Interrupt the block at the first signal to end; more of them, which often follow, do not disturb its end.

    A SIGHUP that was ignored before stays ignored: under nohup, the command outlives the terminal. Raises CommandError
    after an interrupt.
    """
    is_ending = is_interrupted = False

    def end(_number: int, frame: FrameType | None) -> None:
        nonlocal is_ending
        interrupt = signal.getsignal(signal.SIGINT)  # while trio runs, trio's own: not everywhere is it to be raised
        if not is_ending and callable(interrupt):
            is_ending = True
            interrupt(signal.SIGINT, frame)

    before = {number: signal.getsignal(number) for number in END_SIGNALS}
    with _interruptible():
        for number in END_SIGNALS:
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, end)
        try:
            yield
        except* KeyboardInterrupt:  # alone, or in the group of a nursery
            is_interrupted = True
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if is_interrupted:
        raise CommandError(f"{what} was interrupted")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let interrupts have a handler, also where SIGINT is ignored: shells do that for commands in the background.

    SIGINT itself is held back then, and dropped at the end.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
