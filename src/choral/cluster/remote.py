"""Objects far away, through fsspec: memory://, s3://, gs://, abfs://, http servers, anything it knows.

Only whole reads, whole writes, listings and removals are asked for. Every call has a time after which it counts as failed, and is tried
again a few times: writing the same bytes twice does no harm.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from choral.base.errors import InputError, RunError
from choral.base.values import Value
from choral.cluster.asking import Question

R = TypeVar("R")
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True)
class Store(Value):
    """A run folder that is not a path of this machine, and how long it is waited for.

    Args:
        url: as fsspec knows it, such as 's3://bucket/run'.
        timeout_seconds: after which a call counts as failed.
        tries: of each call, before it is an error.
        options: what the file system is told, such as endpoint_url; the words of fsspec's storage options.

    >>> Store("memory://run").url
    'memory://run'
    """

    url: str
    timeout_seconds: float = 60.0
    tries: int = 4
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if "://" not in self.url:
            raise InputError(
                f"Store: url is {self.url!r}; give one with ://, such as 's3://bucket/run', or a path as run_dir."
            )
        if not self.timeout_seconds > 0 or self.tries < 1:
            raise InputError(
                f"Store: timeout_seconds is {self.timeout_seconds!r}, tries is {self.tries!r}; give more than 0 seconds and 1 try or more."
            )

    def __str__(self) -> str:
        return self.url


def is_far(run_dir: Any) -> bool:
    """Return whether a run folder is a URL rather than a path of this machine.

    >>> is_far("s3://bucket/run"), is_far("runs/one")
    (True, False)
    """
    return isinstance(run_dir, Store) or (isinstance(run_dir, str) and "://" in run_dir)


class RemoteObjects:
    """The objects of a URL.

    Args:
        store: the URL and how long it is waited for; a text is one with the usual patience.
    """

    grows, is_far = False, True

    def __init__(self, store: Store | str):
        self.store = Store(store) if isinstance(store, str) else store
        self.where = self.store.url.rstrip("/")
        self._system, self._root = self._call("it cannot be opened", self._open)

    def _open(self) -> tuple[Any, str]:
        try:
            import fsspec

            return fsspec.core.url_to_fs(self.where, **self.store.options)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"run_dir {self.where} cannot be used: {error}; install what fsspec needs for it, or give another place."
            ) from error

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def get(self, name: str) -> bytes | None:
        """Return an object, None if there is none."""

        def read() -> bytes | None:
            try:
                return bytes(self._system.cat_file(self._path(name)))
            except _MISSING:
                return None

        return self._call(f"{name} cannot be read", read)

    def put(self, name: str, data: bytes) -> None:
        """Write an object."""
        path = self._path(name)

        def write() -> None:
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, data)

        self._call(f"{name} cannot be written", write)

    def put_first(self, name: str, data: bytes) -> None:
        """Write an object unless it is there; of two at once the last may stay, which says the same."""
        if self.get(name) is None:
            self.put(name, data)

    def append(self, name: str, data: bytes) -> None:
        """Objects do not grow."""
        raise NotImplementedError

    def names(self, folder: str) -> list[str]:
        """Return the names of the objects in a folder and below it."""

        def listed() -> list[str]:
            self._system.invalidate_cache()
            try:
                return list(self._system.find(self._path(folder)))
            except _MISSING:
                return []

        start = len(self._root.lstrip("/")) + 1
        return sorted(path.lstrip("/")[start:] for path in self._call(f"{folder} cannot be listed", listed))

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""

        def gone() -> None:
            try:
                self._system.rm_file(self._path(name))
            except _MISSING:
                return

        self._call(f"{name} cannot be removed", gone)

    def _call(self, what: str, act: Callable[[], R]) -> R:
        """Return what a call gives; tried again if it fails or does not answer in time, then RunError."""
        error: Exception | None = None
        for number in range(self.store.tries):
            if number:
                time.sleep(min(0.05 * 4**number, 5.0))
            try:
                return Question(act).answer(self.store.timeout_seconds)
            except InputError:
                raise
            except Exception as failed:  # a file system of anybody's may fail in any way
                error = failed
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{self.where}: {what} ({said}), {self.store.tries} times; look at the store and the network, then run the same command again."
        ) from error
