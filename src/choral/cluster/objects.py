"""Objects: named bytes in one place that all processes of a run see, and no more than that is asked of the place.

Nothing is renamed and nothing is locked. What a process wrote counts once a manifest names it with its SHA-256, and the manifest is
written last; two processes that do the same write the same bytes.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from choral.base.errors import RunError
from choral.engine.files import check_within, open_json, open_kept, sealed_json, write_bytes


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
