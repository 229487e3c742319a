"""Calls to others that may never answer: a store, a cluster that is gone. They run in a thread that nobody has to wait for."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class Question(Generic[R]):
    """A call that is under way.

    >>> Question(lambda: 2 + 2).answer(5.0)
    4
    """

    def __init__(self, act: Callable[[], R]):
        self._results: list[R] = []
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(act,), daemon=True)  # the process ends without it
        self._thread.start()

    def _run(self, act: Callable[[], R]) -> None:
        try:
            self._results.append(act())
        except BaseException as error:
            self._errors.append(error)

    def answer(self, seconds: float) -> R:
        """Return what the call gives, or raise what it raises; TimeoutError if it does not end, and it can be asked for again."""
        self._thread.join(seconds)
        if self._errors:
            raise self._errors[0]
        if not self._results:
            raise TimeoutError(f"no answer within {seconds:g} s")
        return self._results[0]

    def ended(self, seconds: float) -> bool:
        """Return whether the call has ended, by itself or by an error, within some seconds."""
        self._thread.join(max(seconds, 0.0))
        return not self._thread.is_alive()
