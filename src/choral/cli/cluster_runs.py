"""The commands for runs trained leaf by leaf by several processes or machines: fit --prepare, leaves, run-leaf."""

import contextlib
import io
import shlex
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from choral.base.errors import InputError, RunError, did_you_mean
from choral.cli.options import Apart, Json, Progress, Quiet, Reading, Running, Settings, Watching, prepare_fit, taken
from choral.cli.output import progress, say, table, write_json

_COMMAND = "command.json"
_ASKED = ("method", "epochs", "budget", "members", "class_weight")
_COMPUTE = ("executor", "precision", "accumulate")
Run = Annotated[str, typer.Argument(help="The folder of a run from fit --prepare.")]


def understood(typed: dict[str, Any], *, quiet: bool) -> Any:
    """Return the prepared fit (`choral.tables.fit.Ready`) for the options of fit."""
    values = (taken(kind, typed) for kind in (Reading, Settings, Watching))
    return prepare_fit(typed["data"], *values, quiet=quiet, **{name: typed[name] for name in _ASKED})


def _arguments(typed: dict[str, Any], ready: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    from choral.engine.compute import Compute

    what, options = ready.arguments()
    return what, options | {"seed": typed["seed"], "compute": Compute(**{name: typed[name] for name in _COMPUTE})}


def check_apart(apart: Apart, time_limit: float | None, *, extend: bool, overwrite: bool) -> None:
    """Raise InputError for options that cannot be combined."""
    if extend and overwrite:
        raise InputError("--overwrite starts again and --extend adds members to what is there; give one of them.")
    if apart.stack is not None and not apart.prepare:
        raise InputError("--stack says how a run is cut into leaves; add --prepare, or leave it out.")
    given = {"--prepare": apart.prepare, "--cluster": apart.cluster is not None, "--time-limit": time_limit is not None}
    named = [name for name, here in (given | {"--extend": extend and apart.prepare}).items() if here]
    if len(named) > 1:
        raise InputError(f"{named[0]} and {named[1]} cannot be combined; leave one of them out.")


def cluster_of(word: str | None) -> Any:
    """Return the cluster that a word names; None for no cluster."""
    from choral.cluster.ray import Ray

    return None if word is None else Ray(address=None if word == "ray" else word)


def results_only(cluster: str | None) -> contextlib.AbstractContextManager[Any]:
    """Keep Ray's messages about lost machines off standard output, which is for results.

    Ray's shutdown waits for the thread that prints. If nobody reads it, a pipe fills up after a few machines, and neither of them ends.
    """
    return contextlib.nullcontext() if cluster is None else contextlib.redirect_stdout(io.StringIO())


def tell_prepared(typed: dict[str, Any], ready: Any, place: str | Path, apart: Apart, running: Running) -> None:
    """Make a run folder without training, store its options, and list its leaves."""
    from choral.cluster.run import prepare
    from choral.cluster.storage import opened
    from choral.engine.files import write_json as keep

    what, options = _arguments(typed, ready)
    rows = prepare(*what, run_dir=place, stack=apart.stack, on_existing=running.on_existing, **options)
    data = Path(typed["data"])
    held = typed | {"data": str(data.resolve()) if data.exists() else typed["data"]}  # as other folders see it
    with opened(place) as storage:
        keep(storage.folder / _COMMAND, held, within=storage.folder)
    _show(str(place), rows, json=running.json)


def _show(run: str, rows: list[dict[str, Any]], *, json: bool) -> None:
    if json:
        write_json(rows)
        return
    shown = [row | {"members": ", ".join(map(str, row["members"])), "after": row["after"] or ""} for row in rows]
    table(f"{run}: {len(rows)} leaves", ["path", "state", "networks", "epochs", "members", "after"], shown)
    ready = [row["path"] for row in rows if row["state"] in ("ready", "begun")]
    if ready:
        say(f"train one with: choral run-leaf {shlex.quote(run)} {ready[0]}")
    elif all(row["state"] == "done" for row in rows):
        say("all leaves are trained; run the fit command without --prepare to assemble the ensemble.")


def leaves(
    run: Run,
    ready: Annotated[bool, typer.Option("--ready", help="Print only the leaves that can be trained now.")] = False,
    json: Json = False,
) -> None:
    """List the leaves of a prepared run: ready, waiting for another leaf, or done.

    Example: choral leaves runs/houses --ready
    """
    from choral.cluster.run import leaves as found

    rows = found(run)
    if not ready:
        _show(run, rows, json=json)
        return
    for row in rows:
        if row["state"] in ("ready", "begun"):
            say(row["path"])


def run_leaf(
    run: Run,
    path: Annotated[str | None, typer.Argument(help="The leaf's path from choral leaves.")] = None,
    index: Annotated[int | None, typer.Option(min=0, help="The leaf's number, for job arrays.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Maximum seconds to wait for the leaf it continues from.")] = 0.0,
    data: Annotated[str | None, typer.Option(help="Path of the data on this machine, if different.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    shown: Progress = None,
) -> None:
    """Train one leaf of a prepared run. A trained leaf is not trained again; a killed one continues.

    Example: choral run-leaf runs/houses --index 0
    """
    from choral.cluster.run import leaves as found
    from choral.cluster.run import run_leaf as train

    chosen = _chosen(run, found(run), path, index)
    name, typed = chosen["path"], _command(run)
    typed["data"] = data or typed["data"]
    what, options = _arguments(typed, understood(typed, quiet=True))
    until = time.monotonic() + wait
    while time.monotonic() < until and any(r["path"] == name and r["state"] == "waiting" for r in found(run)):
        time.sleep(min(1.0, wait))
    with progress(json or quiet, shown) as bar:
        made = train(run, name, *what, callbacks=bar(name, chosen["epochs"]), **options)
    if json:
        write_json(made)
    else:
        say(f"{name}: {len(made['members'])} member(s) in {run}, digest {made['digest'][:16]}")


def _command(run: str) -> dict[str, Any]:
    from choral.cluster.storage import opened
    from choral.engine.files import read_json

    with opened(run) as storage:
        held = read_json(storage.folder / _COMMAND)
    if held is None:
        raise RunError(
            f"{run} has no {_COMMAND}, so its data is unknown; make it with choral fit DATA --prepare, or train its "
            "leaves in Python with choral.run_leaf."
        )
    return held


def _chosen(run: str, rows: list[dict[str, Any]], path: str | None, index: int | None) -> dict[str, Any]:
    if (path is None) == (index is None):
        raise InputError(
            f"give one leaf of {run}: its path, or --index and its number; choral leaves {run} lists them."
        )
    if index is not None and index >= len(rows):
        raise InputError(f"--index is {index}; {run} has leaves 0 to {len(rows) - 1}.")
    known: dict[Any, Any] = {row["path"]: row for row in rows} if index is None else {path: rows[index]}
    if path not in known:
        near = did_you_mean(str(path), known)
        raise InputError(f"{run} has no leaf {path!r}; choral leaves {run} lists its {len(rows)}.{near}")
    return dict(known[path])
