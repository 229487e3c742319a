"""Listen to leaves that other processes train: their events are read where they are written."""

import json
import time
from collections.abc import Sequence
from typing import Any

from choral.base.errors import RunError
from choral.cluster.leaves import Leaf
from choral.cluster.objects import Objects
from choral.cluster.run import Hears

_SHARE = 20  # of the time, at most, that listening takes: one in so many


class Ear:
    """Hears the events of leaves, each once, however often a leaf is begun again.

    Args:
        objects: where the leaves write.
        leaves: those that are trained.
        hear: is told every event, with the leaf's path.
    """

    def __init__(self, objects: Objects, leaves: Sequence[Leaf], hear: Hears):
        self.objects, self.hear = objects, hear
        self._path_of = {leaf.folder: leaf.path for leaf in leaves}
        self._read: dict[str, int] = {}  # bytes of each object that were heard
        self._heard: dict[str, set[int]] = {}  # lines of each leaf: an attempt begins with those of the one before
        self._next = 0.0
        self._skip_old()

    def _skip_old(self) -> None:
        """Pass over what was written before."""
        for name in self._logs(""):
            self._lines(name)

    def _logs(self, folder: str) -> list[str]:
        names = self.objects.names(folder or "leaves")
        return [n for n in names if n.endswith(".jsonl") and n.rpartition("/")[0] in self._path_of]

    def listen(self, *, folder: str = "") -> None:
        """Tell what is new, of all leaves or of one folder; not too often."""
        started = time.monotonic()
        if not folder and started < self._next:
            return
        try:
            for name in self._logs(folder):
                for line in self._lines(name):
                    self._tell(self._path_of[name.rpartition("/")[0]], line)
        except RunError:  # a store that does not answer just now; nothing depends on what is heard
            pass
        self._next = time.monotonic() + max(0.5, _SHARE * (time.monotonic() - started))

    def _lines(self, name: str) -> list[bytes]:
        """Return the whole lines of an object that are new to its leaf."""
        data = self.objects.get(name) or b""
        begin = self._read.get(name, 0)
        end = data.rfind(b"\n") + 1
        if end <= begin:
            return []
        self._read[name] = end
        heard = self._heard.setdefault(name.rpartition("/")[0], set())
        found = [line for line in data[begin:end].splitlines() if hash(line) not in heard]
        heard.update(map(hash, found))
        return found

    def _tell(self, path: str, line: bytes) -> None:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            return
        event.pop("time", None)
        self.hear(path, event)
