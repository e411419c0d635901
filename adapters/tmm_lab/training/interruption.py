"""Ctrl-C and SIGTERM: the first asks a run to end well, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interruption"]

_ONE_PRESS = 1.0  # seconds: the terminal and torchrun both send a process the signal of one Ctrl-C


class Interruption:
    """Remembers, inside its `with` block, that the user asked the run to stop."""

    def __init__(self, *, silent: bool = False) -> None:
        """Say that a request was heard, unless `silent`."""
        self.signal: int | None = None
        self._at = 0.0
        self._at_once = False
        self._silent = silent
        self._earlier: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether the run should save and end."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """What the shell expects of a process that ended by a signal: 130 after Ctrl-C, 143 after SIGTERM.

        143 as well where only another process of the run was signalled.
        """
        return 128 + (signal.SIGTERM if self.signal is None else self.signal)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a request end the process within the block, by `SystemExit`: nothing it does is worth waiting for."""
        self._at_once = True
        try:
            if self.requested:
                raise SystemExit(self.exit_code)
            yield
        finally:
            self._at_once = False

    def __enter__(self) -> Interruption:
        """Take the signals over; only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._earlier[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is not None:
            if now - self._at > _ONE_PRESS:
                raise KeyboardInterrupt
            return
        self.signal, self._at = number, now
        if not self._silent:
            # Not by print: the signal may have come in the middle of another.
            how = "" if self._at_once else ": finishing this step and saving (once more to stop at once)"
            os.write(2, f"\nstopping{how}\n".encode())
        if self._at_once:
            raise SystemExit(self.exit_code)
