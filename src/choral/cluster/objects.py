"""Objects: named bytes in a folder or in a remote store (fsspec) that all processes of a run see.

Objects: named bytes in one place that all processes of a run see, and no more than that is asked of the place.

Nothing is renamed and nothing is locked. What a process wrote counts once a manifest names it with its SHA-256, and the manifest is
written last; two processes that do the same write the same bytes.

Calls to others that may never answer: a store, a cluster that is gone. They run in a thread that nobody has to wait for.

Objects far away, through fsspec: memory://, s3://, gs://, abfs://, http servers, anything it knows.

Only whole reads, whole writes, listings and removals are asked for. Every call has a time after which it counts as failed, and is tried
again a few times: writing the same bytes twice does no harm.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from choral.base.errors import InputError, RunError
from choral.base.values import Value
from choral.engine.files import check_within, open_json, open_kept, sealed_json, write_bytes

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


class Objects(Protocol):
    """Named bytes. Names are relative, with slashes; `is_far` says that they are no files of this machine."""

    where: str
    grows: bool
    is_far: bool

    def get(self, name: str) -> bytes | None:
        """Return an object, None if there is none."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write an object, or write it again."""
        ...

    def put_first(self, name: str, data: bytes) -> None:
        """Write an object unless it is there; of two at once one stays."""
        ...

    def append(self, name: str, data: bytes) -> None:
        """Add to an object; only where `grows` says that this can be done."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of all objects in a folder and below it, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        ...


class LocalObjects:
    """The objects of a folder on a disk, each written whole or not at all."""

    grows, is_far = True, False

    def __init__(self, folder: Path):
        self.folder, self.where = folder, str(folder)

    def get(self, name: str) -> bytes | None:
        """Return a file's bytes."""
        try:
            return (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise RunError(f"{self.folder / name} cannot be read ({error.strerror}); check the disk.") from error

    def put(self, name: str, data: bytes) -> None:
        """Write a file aside and rename it into place."""
        write_bytes(self.folder / name, data, within=self.folder)

    def put_first(self, name: str, data: bytes) -> None:
        """Write a file aside and link it into place, which fails if it is there."""
        path = self.folder / name
        aside = path.with_name(f".{os.urandom(8).hex()}.{path.name}")
        write_bytes(aside, data, within=self.folder)
        try:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        except OSError:  # a file system without links
            if not path.exists():
                write_bytes(path, data, within=self.folder)
        finally:
            aside.unlink(missing_ok=True)

    def append(self, name: str, data: bytes) -> None:
        """Add to a file."""
        path = self.folder / name
        with _said(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            check_within(path.parent, self.folder)
            descriptor = open_kept(path, os.O_APPEND)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder; what is being written aside is none yet."""
        found: list[str] = []
        for root, _, files in os.walk(self.folder / folder):  # which leaves out folders that others remove meanwhile
            found += [str((Path(root) / name).relative_to(self.folder)) for name in files if not name.startswith(".")]
        return sorted(found)

    def remove(self, name: str) -> None:
        """Remove a file, and its folder with the last one."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


@contextlib.contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path} cannot be written ({error.strerror}); make room or give a place that can be written."
        ) from error


def sha256(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def put_same(objects: Objects, name: str, data: bytes) -> str:
    """Write an object unless it is there with these very bytes, so that nobody reads it half; return its SHA-256."""
    if objects.get(name) != data:
        objects.put(name, data)
    return sha256(data)


def get_whole(objects: Objects, name: str, digest: str) -> bytes | None:
    """Return an object if it has the SHA-256 that a manifest gives it, else None."""
    data = objects.get(name)
    return data if data is not None and sha256(data) == digest else None


def put_json(put: Callable[[str, bytes], None], name: str, content: dict[str, object]) -> None:
    """Write a sealed dict by a `put`."""
    put(name, sealed_json(content))


def get_json(objects: Objects, name: str) -> dict[str, object] | None:
    """Return the dict of a sealed object; None if it is missing, cut short or damaged."""
    data = objects.get(name)
    if data is None:
        return None
    try:
        return open_json(data, f"{objects.where}/{name}") if b"sha256" in data else None
    except RunError:
        return None


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
