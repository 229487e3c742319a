"""Where a run is: a folder of this machine, or a URL whose few small files are mirrored in a folder while a call lasts.

What a run far away holds, fetched for reading: only what manifests name.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choral.base.errors import ChoralError, RunError
from choral.cluster.leaves import leaves_of
from choral.cluster.manifest import key_of, read_manifest
from choral.cluster.objects import LocalObjects, Objects, RemoteObjects, get_whole, is_far
from choral.engine.folder import RUN_FILES, read_plan


@contextmanager
def opened(run_dir: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the folder in which the files of a run are read and written, and its objects; None and None for no place.

    For a URL the folder is a mirror: what was changed in it is written back at the end, and errors name the URL.
    """
    if run_dir is None:
        yield None, None
        return
    if not is_far(run_dir):
        folder = Path(run_dir).absolute()  # callbacks may change the working folder, and members are read later
        yield folder, LocalObjects(folder)
        return
    objects = RemoteObjects(run_dir)
    with tempfile.TemporaryDirectory(prefix="choral-") as name:
        folder = Path(name)
        for file in RUN_FILES:
            data = objects.get(file)
            if data is not None:
                (folder / file).write_bytes(data)
        try:
            yield folder, objects
            publish(objects, folder)
        except ChoralError as error:
            said = str(error).replace(name, objects.where)
            raise (error if said == str(error) else type(error)(said)) from error


def absolute(run_dir: Any) -> Any:
    """Return a place by a name that other processes understand too."""
    return run_dir if is_far(run_dir) else Path(run_dir).resolve()


def publish(objects: Objects, folder: Path, *, overwrite: bool = False) -> None:
    """Write the files of a mirror that are not yet so in its place; nothing is to be done for a folder of this machine.

    Args:
        objects: the place.
        folder: the mirror.
        overwrite: whether all that the place holds of a run is removed first.
    """
    if not objects.is_far:
        return
    if overwrite:
        held = [*objects.names("leaves"), *objects.names("members")]
        for name in (*RUN_FILES, *sorted(held, key=lambda name: not name.endswith(".json"))):  # what names others first
            objects.remove(name)
    for name in RUN_FILES:
        path = folder / name
        data = path.read_bytes() if path.exists() else None
        if data is not None and objects.get(name) != data:
            objects.put(name, data)


@contextmanager
def fetched(run_dir: Any) -> Iterator[Path]:
    """Yield a folder with what a URL holds of a run; it is gone afterwards. Members that are not whole are left out."""
    with opened(run_dir) as (folder, objects):
        plan = read_plan(folder)
        if plan is None or "leaves" not in plan:
            raise RunError(f"{objects.where} holds no run; give the URL of a run.")
        (folder / "members").mkdir()
        for leaf in leaves_of(plan):
            manifest = read_manifest(objects, key_of(plan, leaf), leaf)
            for name, digest in () if manifest is None else manifest.members.items():
                data = get_whole(objects, name, digest)
                if data is not None:
                    (folder / name).write_bytes(data)
        yield folder
