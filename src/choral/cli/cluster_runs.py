"""The commands for runs that several processes or machines train, leaf by leaf: fit --prepare, leaves, run-leaf."""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError, RunError, did_you_mean
from choral.cli.options import Apart, Json, Progress, Quiet, Reading, Running, Settings, Watching, prepare_fit
from choral.cli.output import progress, say, table, write_json

_COMMAND = "command.json"
Run = Annotated[str, typer.Argument(help="The folder of a run that fit --prepare made.")]


@dataclass(frozen=True)
class Words:
    """The words of fit from which its run can be understood again, by another process on another machine.

    Attributes:
        asked: method, epochs, members and weights of classes.
        compute: executor, precision and parts of a batch.
    """

    data: str
    reading: Reading
    settings: Settings
    watching: Watching
    asked: dict[str, Any]
    seed: int
    compute: dict[str, Any]

    def understood(self, *, quiet: bool) -> Any:
        """Return what they ask for, a `choral.tables.fit.Ready`."""
        return prepare_fit(self.data, self.reading, self.settings, self.watching, quiet=quiet, **self.asked)

    def arguments(self, ready: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the network, data and recipe that `choral.fit` gets, and its options that decide the members."""
        from choral.engine.compute import Compute

        what, options = ready.arguments()
        return what, options | {"seed": self.seed, "compute": Compute(**self.compute)}

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON types, the data as other folders see it."""
        path = Path(self.data)
        return asdict(self) | {"data": str(path.resolve()) if path.exists() else self.data}

    @staticmethod
    def from_dict(held: dict[str, Any]) -> "Words":
        """Return what `to_dict` gave."""
        kinds = {"reading": Reading, "settings": Settings, "watching": Watching}
        return Words(**(held | {name: kind(**held[name]) for name, kind in kinds.items()}))


def check_apart(apart: Apart, time_limit: float | None, *, extend: bool, overwrite: bool) -> None:
    """Raise InputError for options that do not go together."""
    if extend and overwrite:
        raise InputError("--overwrite starts again and --extend adds members to what is there; give one of them.")
    if apart.stack is not None and not apart.prepare:
        raise InputError("--stack says how a run is cut into leaves; add --prepare, or leave it out.")
    given = {"--prepare": apart.prepare, "--cluster": apart.cluster is not None, "--time-limit": time_limit is not None}
    named = [name for name, here in given.items() if here] + ["--extend"] * (extend and apart.prepare)
    if len(named) > 1:
        raise InputError(
            f"{named[0]} trains in other processes, which cannot go with {named[1]}; leave one of them out."
        )


def cluster_of(word: str | None) -> Any:
    """Return the cluster that a word names, None for none."""
    from choral.cluster.ray import Ray

    return None if word is None else Ray(address=None if word == "ray" else word)


@contextlib.contextmanager
def results_only(cluster: str | None) -> Iterator[None]:
    """Keep what Ray prints about machines that die from standard output, which is for results.

    Ray's shutdown waits for the thread that prints. Where nobody reads, a pipe is full after a few machines, and neither of them ends.
    """
    if cluster is None:
        yield
        return
    with open(os.devnull, "w", encoding="utf8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def places(out: str | None, usual: Path) -> tuple[str | Path, Path]:
    """Return where a run goes, and the folder of this machine for what is made of it: the usual one if the run is at a URL."""
    from choral.engine.compute import is_far

    if out is not None and is_far(out):
        return out, usual
    return (Path(out or usual),) * 2


def tell_prepared(words: Words, ready: Any, place: str | Path, apart: Apart, running: Running) -> None:
    """Make a run folder without training, keep the words it was made by, and list its leaves."""
    from choral.cluster.run import prepare
    from choral.cluster.storage import opened
    from choral.engine.files import write_json as keep

    what, options = words.arguments(ready)
    rows = prepare(*what, run_dir=place, stack=apart.stack, on_existing=running.on_existing, **options)
    with opened(place) as storage:
        keep(storage.folder / _COMMAND, words.to_dict(), within=storage.folder)
    _show(str(place), rows, json=running.json)


def _show(run: str, rows: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        write_json(rows)
        return
    shown = [row | {"members": _span(row["members"]), "after": row["after"] or ""} for row in rows]
    table(f"{run}: {len(rows)} leaves", ["path", "state", "networks", "epochs", "members", "after"], shown)
    ready = [row["path"] for row in rows if row["state"] in ("ready", "begun")]
    if ready:
        say(f"train one with: choral run-leaf {shlex.quote(run)} {ready[0]}")
    elif all(row["state"] == "done" for row in rows):
        say("all are trained; the fit command without --prepare puts the ensemble together.")


def _span(numbers: list[int]) -> str:
    """Return whole numbers in short.

    >>> _span([3, 4, 5]), _span([2, 7]), _span([])
    ('3-5', '2, 7', '')
    """
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ", ".join(map(str, numbers))


def leaves(
    run: Run,
    ready: Annotated[
        bool, typer.Option("--ready", help="Print the paths that can be trained now, one a line.")
    ] = False,
    json: Json = False,
) -> None:
    """List the leaves of a prepared run: which are ready, which wait for another, which are done.

    Example: choral leaves runs/houses --ready
    """
    from choral.cluster.run import leaves as found

    rows = found(run)
    if ready:
        for row in rows:
            if row["state"] in ("ready", "begun"):
                say(row["path"])
        return
    _show(run, rows, json=json)


def run_leaf(
    run: Run,
    path: Annotated[str | None, typer.Argument(help="The leaf, as choral leaves names it.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="The leaf by its number, for job arrays.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait, at most, for the leaf it goes on from.")] = 0.0,
    data: Annotated[str | None, typer.Option(help="Where the data is on this machine, if it is elsewhere.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    shown: Progress = None,
) -> None:
    """Train one leaf of a prepared run, or find it trained; killed and called again, it goes on.

    Example: choral run-leaf runs/houses --index 0
    """
    from choral.cluster.run import leaves as found
    from choral.cluster.run import run_leaf as train

    rows = found(run)  # first of all: whether it is a run
    words, chosen = _command(run, data), _chosen(run, rows, path, index)
    name = chosen["path"]
    what, options = words.arguments(words.understood(quiet=True))
    _await(run, name, wait)
    with progress(json or quiet, shown) as bar:
        made = train(run, name, *what, callbacks=bar(name, chosen["epochs"]), **options)
    if json:
        write_json(made)
    else:
        say(f"{name}: {len(made['members'])} member(s) in {run}, digest {made['digest'][:16]}")


def _command(run: str, data: str | None) -> Words:
    """Return the words by which a run was prepared, perhaps with the data at another place."""
    from choral.cluster.storage import opened
    from choral.engine.files import read_json

    with opened(run) as storage:
        held = read_json(storage.folder / _COMMAND)
    try:
        if held is not None:
            return Words.from_dict(held if data is None else held | {"data": data})
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{run} was prepared by a choral with other options ({error}); prepare it again with this one."
        ) from error
    raise RunError(
        f"{run} has no {_COMMAND}, so nothing says which data it was prepared for; make it with choral fit DATA --prepare, or train its "
        "leaves in Python with choral.run_leaf."
    )


def _chosen(run: str, rows: list[dict[str, Any]], path: str | None, index: int | None) -> dict[str, Any]:
    if (path is None) == (index is None):
        raise InputError(
            f"give one leaf of {run}: its path, or its number with --index; choral leaves {run} lists them."
        )
    if index is not None:
        if index >= len(rows):
            raise InputError(f"--index is {index}; {run} has leaves 0 to {len(rows) - 1}.")
        return rows[index]
    known = {row["path"]: row for row in rows}
    if path not in known:
        near = did_you_mean(str(path), known)
        raise InputError(f"{run} has no leaf {path!r}; choral leaves {run} lists its {len(rows)}.{near}")
    return known[path]


def _await(run: str, path: str, seconds: float) -> None:
    """Wait while a leaf waits for another, at most some seconds."""
    from choral.cluster.run import leaves as found

    until = time.monotonic() + seconds
    while time.monotonic() < until and any(row["path"] == path and row["state"] == "waiting" for row in found(run)):
        time.sleep(min(1.0, seconds))
