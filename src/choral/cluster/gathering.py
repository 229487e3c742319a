"""What a run far away holds, fetched for reading: only what manifests name."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from choral.base.errors import RunError
from choral.cluster.leaves import leaves_of
from choral.cluster.manifest import key_of, read_manifest
from choral.cluster.objects import get_whole
from choral.cluster.sites import opened
from choral.engine.folder import read_plan


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
