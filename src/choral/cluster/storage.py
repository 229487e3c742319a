"""The place of a run: a folder that all its processes can access, or a URL that each of them mirrors in a folder.

`pull` and `push` copy files from and to the URL through fsspec: whole reads and writes, listings and removals, each with a timeout and
retries. Files count once a manifest names them with their SHA-256, and the manifest is written last.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from choral.base.errors import ChoralError, InputError, RunError, first_line
from choral.engine.compute import Store, is_far
from choral.engine.files import write_bytes
from choral.engine.folder import RUN_FILES

_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class Storage:
    """A folder that all processes of a run can access. Names are relative; those that end with a slash are folders.

    Args:
        folder: where files are read and written.
        where: its name in messages.
    """

    def __init__(self, folder: Path, where: str = ""):
        self.folder, self.where = folder, where or str(folder)

    def pull(self, *names: str) -> None:
        """Update files of the folder."""

    def push(self, *names: str) -> None:
        """Write files that changed since the last pull or push, and remove those that are gone from a given folder."""

    def clear(self) -> None:
        """Remove the run at a URL."""

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of all files in a folder and below it, without temporary ones."""
        found: list[str] = []
        for root, _, files in os.walk(self.folder / folder):  # which leaves out folders that others remove meanwhile
            found += [str((Path(root) / name).relative_to(self.folder)) for name in files if not name.startswith(".")]
        return sorted(found)


class RemoteStorage(Storage):
    """A URL, mirrored in a temporary folder."""

    def __init__(self, store: Store | str):
        self.store = Store(store) if isinstance(store, str) else store
        super().__init__(Path(tempfile.mkdtemp(prefix="choral-")), self.store.url.rstrip("/"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._known: dict[str, tuple[int, int]] = {}  # files that the URL has, as they were then
        self._system, self._root = self._call("it cannot be opened", self._open)

    def _open(self) -> tuple[Any, str]:
        try:
            import fsspec

            return fsspec.core.url_to_fs(self.where, **self.store.options)
        except (ImportError, ValueError) as error:
            raise InputError(
                f"run_dir {self.where} cannot be used: {error}; install the package that fsspec needs for it, or give another URL."
            ) from error

    def pull(self, *names: str) -> None:
        """Bring files of the mirror up to date."""
        inside = {
            one for name in names if name.endswith("/") for one in (*self.names(name), *Storage.names(self, name))
        }
        for name in [*inside, *(name for name in names if not name.endswith("/"))]:
            data, path = self.get(name), self.folder / name
            if data is None:
                path.unlink(missing_ok=True)
                self._known.pop(name, None)
                continue
            if not path.exists() or path.read_bytes() != data:
                write_bytes(path, data)
            self._known[name] = _stamp(path)

    def push(self, *names: str) -> None:
        """Write files that changed, those that name others last, and remove those that are gone from a folder named."""
        folders = tuple(name for name in names if name.endswith("/"))
        inside = {one for name in folders for one in Storage.names(self, name)}
        for name in sorted(inside.union(names).difference(folders), key=lambda name: (name.endswith("json"), name)):
            path = self.folder / name
            if path.exists() and self._known.get(name) != _stamp(path):
                stamp = _stamp(path)
                self.put(name, path.read_bytes())
                self._known[name] = stamp
        self.remove(*(name for name in self._known if name.startswith(folders) and name not in inside))

    def clear(self) -> None:
        """Remove what the URL holds of a run."""
        self.remove(*RUN_FILES, *self.names("leaves"), *self.names("members"))
        self._known.clear()

    def remove(self, *names: str) -> None:
        """Remove files that are there."""
        for name in sorted(names, key=lambda name: not name.endswith("json")):  # what names others first
            self._call(f"{name} cannot be removed", self._system.rm_file, f"{self._root}/{name}", missing=True)
            self._known.pop(name, None)

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a file, None if there is none."""
        return self._call(f"{name} cannot be read", self._system.cat_file, f"{self._root}/{name}", missing=True)

    def put(self, name: str, data: bytes) -> None:
        """Write a file."""

        def write(path: str) -> None:
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(path, data)

        self._call(f"{name} cannot be written", write, f"{self._root}/{name}")

    def names(self, folder: str) -> list[str]:
        """Return the names of all files in a folder and below it."""
        self._system.invalidate_cache()
        place = f"{self._root}/{folder.rstrip('/')}"
        found = self._call(f"{folder} cannot be listed", self._system.find, place, missing=True)
        start = len(self._root.lstrip("/")) + 1
        return sorted(path.lstrip("/")[start:] for path in found or ())

    def _call(self, what: str, act: Callable[..., Any], *args: Any, missing: bool = False) -> Any:
        """Return the result of a call, None if a file may be `missing` and is; errors and timeouts are retried, then RunError."""
        error: Exception | None = None
        for number in range(self.store.tries):
            if number:
                time.sleep(min(0.05 * 4**number, 5.0))
            try:
                return _answer(act, args, self.store.timeout_seconds)
            except InputError:
                raise
            except Exception as failed:  # a file system of anybody's may fail in any way
                if missing and isinstance(failed, _MISSING):
                    return None
                error = failed
        assert error is not None
        raise RunError(
            f"{self.where}: {what} ({first_line(error)}), {self.store.tries} times; look at the store and the network, then run the same command again."
        ) from error


def _stamp(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def _answer(act: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> Any:
    """Return the result of a call; TimeoutError after some seconds, and the call is abandoned."""
    found = Future[Any]()

    def run() -> None:
        try:
            found.set_result(act(*args))
        except Exception as error:  # raised again by whoever waits
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # the process ends without it
    if not wait([found], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return found.result()


def storage_of(run_dir: Any) -> Storage:
    """Return the storage of a run."""
    return RemoteStorage(run_dir) if is_far(run_dir) else Storage(Path(run_dir).absolute())


@contextlib.contextmanager
def opened(run_dir: Any) -> Iterator[Storage]:
    """Yield the storage of a run; changed files are written back at the end, and errors name the URL."""
    storage = storage_of(run_dir)
    try:
        storage.pull(*RUN_FILES)
        yield storage
        storage.push(*RUN_FILES)
    except ChoralError as error:
        said = str(error).replace(str(storage.folder), storage.where)
        raise (error if said == str(error) else type(error)(said)) from error


def publish(storage: Storage, *, overwrite: bool = False) -> None:
    """Write the files of a new run; `overwrite` removes another run at the URL first."""
    if overwrite:
        storage.clear()
    storage.push(*RUN_FILES)
