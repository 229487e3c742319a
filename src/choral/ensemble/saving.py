"""Saved ensembles, one file or a run folder, read back into the parts an ensemble is made of.

Everything that comes from a file passes here: whole by its checksum, of the right form by its schema, within bounds, and
fitting the network it names, before anything is predicted with it. Whatever is wrong is a RunError of one sentence.

Bounds on what a file may ask for are checked before memory or time is spent on it. They are generous: nothing that was ever
fitted comes near them. What a caller asks for in Python has no bounds.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from choral import models
from choral.base.errors import ConversionError, InputError, PlanError, RunError, warn
from choral.base.interface import Interface
from choral.base.types import Builds
from choral.base.values import Function, from_dict, known_kinds
from choral.calibration import StackingWeights
from choral.calibration.members import Correction
from choral.data.inputs import Transform, Transforms
from choral.engine.blueprint import Blueprint
from choral.engine.files import expect, pack_tensors, sweep, unpack_tensors, write_bytes
from choral.engine.folder import read_costs, read_likelihood, read_plan, read_table, run_of
from choral.engine.identity import FINGERPRINT, changes
from choral.engine.store import MemberStore, member_tensors, state_from
from choral.objectives.likelihoods import Likelihood
from choral.plan.cost import cost
from choral.plan.early_stopping import SHARE
from choral.plan.state import State
from choral.plan.walk import trainings
from choral.recipes.recipe import Recipe
from choral.tables.table import Table, table_from


def chosen(store: MemberStore, count: int, recipe: Recipe) -> tuple[MemberStore, int, tuple[Correction, ...]]:
    """Return a store that shows the chosen networks alone, how many, and their weights as a correction.

    Everything stays as it is where the recipe does not choose, or nothing was held out to choose by.

    Args:
        store: all networks of a run.
        count: how many.
        recipe: the method.
    """
    if not any(phase.select for phase in trainings(recipe.plan)):
        return store, count, ()
    held = [store.get(i).slots.get(SHARE) for i in range(count)]
    shares = [0.0 if one is None else float(one["share"]) for one in held]
    numbers = [i for i, share in enumerate(shares) if share > 0]
    if not numbers:
        return store, count, ()
    rows, total = recipe.structure.members * recipe.structure.draws, sum(shares)
    weights = tuple(shares[i] / total / rows for i in numbers for _ in range(rows))
    return store.showing(numbers), len(numbers), (StackingWeights(weights=weights),)


_COUNTS: dict[str, tuple[float, float]] = {
    "batch_repetition": (1, 10_000),
    "branches": (1, 1_000_000),
    "components": (1, 10_000),
    "draws": (1, 100_000),
    "members": (1, 10_000),
    "minimum_channels": (0, 1_000_000),
    "repetition": (0, 1),
    "scale": (0, 1_000),
    "subgroups": (1, 10_000),
    "times": (0, 1_000_000),
    "width": (0, 1_000),
}
NETWORKS = 1_000_000
_ARGUMENT = 10_000_000  # any number a network is built from
_DEPTH = 2_000  # layers
_PARAMETERS = 100_000_000
_GROWTH = 1_000  # parameters built for each one that is stored


def check_counts(content: Any, where: str) -> None:
    """Raise RunError for a count in a recipe, as it stands in a file, that is out of bounds."""
    todo = [content]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            for name, value in item.items():
                if name in _COUNTS and isinstance(value, int | float):
                    check(name, value, *_COUNTS[name], where)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)


def check(name: str, value: float, least: float, most: float, where: str) -> None:
    """Raise RunError unless a number of a file lies between two bounds."""
    if not least <= value <= most:
        raise RunError(
            f"{where} asks for {name} = {value:,}, but {least:,} to {most:,} are read from a file; "
            "it is damaged or was not made by choral."
        )


class _Shapes(TorchFunctionMode):
    """Networks built inside have shapes alone, without memory; initializing them does nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        changed = next((a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Tensor)), None)
        return changed if in_place and changed is not None else func(*args, **(kwargs or {}))


def check_network(spec: Mapping[str, Any], structure: Mapping[str, Any], stored: int, where: str) -> None:
    """Raise RunError if the network a file names is far larger than what the file stores of it.

    Args:
        spec: the network's name and arguments.
        structure: the structure as a dict, whose members and widths make the network larger.
        stored: numbers that the file stores for one network.
        where: the file's name.
    """
    for name, value in spec["arguments"].items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int | float):
                check(f"network.{name}", number, -_ARGUMENT, _ARGUMENT, where)
        layers = len(value) if isinstance(value, list) else value if name == "depth" else 0
        if isinstance(layers, int):
            check(f"network.{name}: layers", layers, 0, _DEPTH, where)
    with torch.device("meta"), _Shapes():
        plain = sum(p.numel() for p in models.rebuild(spec).parameters())
    grown = plain * structure.get("members", 1) * max(1.0, structure.get("width") or 2.0) ** 2
    mixture = structure.get("mixture")
    grown *= mixture.get("components", 1) if isinstance(mixture, Mapping) else 1
    most = max(_PARAMETERS, _GROWTH * stored)
    check("network: parameters", math.ceil(grown), 0, most, where)


_HEADER = {
    "format": int,
    "recipe": dict,
    "likelihood": dict,
    "inputs": ([dict], {str: [dict]}),
    "interface": dict,
    "network": (None, {"name": str, "arguments": dict}, [{"name": str, "arguments": dict}]),
    "forms": [(None, dict)],
    "table": (None, dict),
    "info": dict,
    "posthoc": [dict],
    "fingerprint": FINGERPRINT,
}


@dataclass(frozen=True)
class Saved:
    """What a file or folder holds: everything an ensemble is made of."""

    build: Builds
    recipe: Recipe
    likelihood: Likelihood
    store: MemberStore
    count: int
    inputs: Transforms
    interface: Interface
    table: Table | None
    info: dict[str, Any]
    posthoc: tuple[Correction, ...]
    fingerprint: dict[str, Any]


def save_file(path: Path, states: Iterable[State], about: dict[str, Any]) -> None:
    """Write networks and what is known about them into one file."""
    if path.is_dir():
        raise RunError(f"{path} is a folder; give a file name such as {path / 'ensemble.choral'}.")
    sweep(path.parent, path.name, seconds=3600)
    write_bytes(path, save_bytes(states, about))


def save_bytes(states: Iterable[State], about: dict[str, Any]) -> bytes:
    """Return what `save_file` writes."""
    tensors: dict[str, Tensor] = {}
    forms: list[Any] = []
    for i, state in enumerate(states):
        forms.append(state.form)
        tensors |= {f"{i:05d}/{n}": t for n, t in member_tensors(state).items()}
    return pack_tensors(tensors, {"forms": forms} | about)


def load_file(path: Path, build: Builds | None, *, output: Any = None, likelihood: Likelihood | None = None) -> Saved:
    """Return what a file written by `save_file` holds; arguments as in `choral.load`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); copy or make it again.") from error
    return load_bytes(data, str(path), build, output=output, likelihood=likelihood)


def load_bytes(
    data: bytes, where: str, build: Builds | None = None, *, output: Any = None, likelihood: Likelihood | None = None
) -> Saved:
    """Return what bytes made by `save_bytes` hold; `where` is what to call them, the rest as in `choral.load`."""
    with naming(where):
        tensors, header = unpack_tensors(data, where)
        if "format" not in header:
            raise RunError(f"{where} is not a saved ensemble (a member of a run?); give a file made by Ensemble.save.")
        expect(header, _HEADER, where)
        store = _members(tensors, header["forms"], where)
        about, table = header | {"given": likelihood}, table_from(header["table"], where)
        count, info = len(header["forms"]), header["info"]
        return _checked(about, store, count, build, where, output=output, table=table, info=info)


def _members(tensors: dict[str, Tensor], forms: list[Any], where: str) -> MemberStore:
    parts: dict[str, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        number, _, name = full.partition("/")
        parts.setdefault(number, {})[name] = tensor
    if sorted(parts) != [f"{i:05d}" for i in range(len(forms))] or not forms:
        raise RunError(
            f"{where} lists {len(forms):,} networks in forms but holds tensors of {len(parts):,}; copy or make it again."
        )
    store = MemberStore()
    for i, form in enumerate(forms):
        store.put(i, state_from(parts[f"{i:05d}"], form, where))
    return store


def load_folder(
    path: Path, build: Builds | None, *, partial: bool, output: Any = None, likelihood: Likelihood | None = None
) -> Saved:
    """Return what a run folder holds.

    Args:
        path: the folder.
        build: the network factory, None for networks of the zoo.
        partial: whether missing or damaged members are left out, with a warning, instead of refused.
        output: the function that picks the networks' output, if one does.
        likelihood: one of the user's own, in place of what a file cannot hold of it.
    """
    where = str(path)
    with naming(where):
        plan = read_plan(path)
        if plan is None:
            raise RunError(f"{path} is not a run folder: it has no plan.json; give a run folder or a saved file.")
        identity = plan["identity"]
        check_counts(identity["recipe"], where)
        count = cost(_of(Recipe, identity["recipe"], where).plan).networks
        check("networks", count, 1, NETWORKS, where)
        info = _costs(path)
        store, count = _present(path, run_of(plan), _expected(info, count), partial)
        fingerprint = expect(identity.get("network"), FINGERPRINT, where)
        about = {**identity, "network": plan["network"], "given": likelihood, "fingerprint": fingerprint}
        completed = read_likelihood(path, run_of(plan))
        if completed is not None:
            about["likelihood"] = completed.to_dict()
        store, count, weights = chosen(store, count, _of(Recipe, identity["recipe"], where))
        about["posthoc"] = [w.to_dict() for w in weights]
        table = read_table(path, plan)
        saved = _checked(about, store, count, build, where, output=output, table=table, info=info)
        if completed is None and saved.likelihood.estimates:
            _without_noise(path, partial=partial)
        return saved


def _without_noise(path: Path, *, partial: bool) -> None:
    """Refuse a run whose noise was not estimated, or is lost; or warn, where what is missing is to be left out."""
    said = (
        f"the noise of the run in {path} is not known (likelihood.json is missing or damaged: it is written when all members are trained), so that "
        "predicted deviations would be those of the targets"
    )
    if not partial:
        raise RunError(
            f"{said}; run the same fit again, which makes it, or take them so: choral.load(path, partial=True)."
        )
    warn(f"{said}, and are.")


def in_memory(saved: Saved) -> Saved:
    """Return the same with its members in memory, for a folder that will be gone."""
    store = MemberStore()
    for i in range(saved.count):
        store.put(i, saved.store.get(i))
    return replace(saved, store=store)


def _expected(info: dict[str, Any], count: int) -> Sequence[int]:
    """Return the numbers of the members a run has: all its plan names, or those before its time was up."""
    kept = info.get("kept")
    whole = isinstance(kept, list) and kept and all(isinstance(i, int) and 0 <= i < count for i in kept)
    return kept if whole and kept else range(count)


def _present(path: Path, run: str, expected: Sequence[int], partial: bool) -> tuple[MemberStore, int]:
    """Return the store of a folder's members, of which there should be these numbers, and how many it shows."""
    lost = MemberStore(path / "members", run=run).lost(max(expected) + 1)
    lost, count = {number: why for number, why in lost.items() if number in expected}, len(expected)
    if not lost:
        return MemberStore(path / "members", run=run, numbers=expected), count
    kept = [i for i in expected if i not in lost]
    first = next((f"; {why}" for why in lost.values() if why != "missing"), "")
    named = ", ".join(map(str, list(lost)[:8])) + (", ..." if len(lost) > 8 else "")
    said = f"the run in {path} is not complete: {len(lost)} of {count} networks are missing (numbers {named}{first})"
    if not partial or not kept:
        rest = "; choral.load(path, partial=True) loads the others" if kept else ""
        raise RunError(f"{said}; run it again to finish{rest}.")
    warn(f"{said}; the other {len(kept)} were loaded.")
    return MemberStore(path / "members", run=run, numbers=kept), len(kept)


def _costs(path: Path) -> dict[str, Any]:
    try:
        return read_costs(path)
    except RunError as error:  # it says what the run cost and decides nothing
        warn(f"{error} The ensemble is loaded without its costs.")
        return {}


def _checked(
    about: dict[str, Any],
    store: MemberStore,
    count: int,
    build: Builds | None,
    where: str,
    *,
    output: Any,
    table: Table | None,
    info: dict[str, Any],
) -> Saved:
    """Return the parts of an ensemble from plain content, each of them checked."""
    check_counts(about["recipe"], where)
    recipe = _of(Recipe, about["recipe"], where)
    found = recipe.problems()
    if found:
        raise RunError(f"{where} holds a recipe that cannot run ({found[0]}); copy or make it again.")
    if build is None and about["network"] is not None:
        stored = max(sum(p.numel() for p in store.get(i).params.values()) for i in range(count))
        for spec in _specs(about["network"]):
            check_network(spec, recipe.structure.to_dict(), stored, where)
    saved = Saved(
        _build_for(about["network"], build, where),
        recipe,
        _likelihood(about["likelihood"], about.get("given"), where),
        store,
        count,
        inputs=_transforms(about["inputs"], where),
        interface=_interface(about["interface"], output, where),
        table=table,
        info=info,
        posthoc=tuple(_of(Correction, v, where) for v in about["posthoc"]),
        fingerprint=about["fingerprint"],
    )
    check_fits(saved, where, given=build is not None)
    return saved


def _transforms(content: Any, where: str) -> Transforms:
    if isinstance(content, dict):
        return {name: tuple(_of(Transform, t, where) for t in own) for name, own in content.items()}
    return tuple(_of(Transform, t, where) for t in content)


def _interface(content: dict[str, Any], output: Any, where: str) -> Interface:
    """Return how networks are called; a function that picks their output must be given again."""
    found = _of(Interface, content, where)
    if not isinstance(found.output, Function):
        if output is not None:
            raise RunError(f"output is given, but {where} knows the output of its networks by itself; leave it out.")
        return found
    if output is None or Function.of(output).name != found.output.name:
        given = "" if output is None else f", not {Function.of(output).name}"
        raise RunError(
            f"the output of the networks in {where} is picked by the function {found.output.name}, which a file never brings; give "
            f"it again{given}: choral.load(path, build, output=...)."
        )
    return replace(found, output=Function.of(output))


def _likelihood(content: dict[str, Any], given: Likelihood | None, where: str) -> Likelihood:
    """Return the likelihood a file names: a kind of the user's own must be defined, and functions must be given anew."""
    kind = str(content.get("kind"))
    if given is not None and type(given).__name__ != kind:
        raise RunError(
            f"{where} was fitted with the likelihood {kind}, but likelihood is {type(given).__name__}; give its own."
        )
    if kind not in known_kinds():
        raise RunError(
            f"{where} was fitted with the likelihood {kind}, which is not defined here, and a file never brings code: import the "
            "module that defines it first, or give it, choral.load(path, likelihood=...)."
        )
    found: Likelihood = _of(Likelihood, content, where)
    return found if given is None else found.with_functions_of(given)


def _of(kind: type[Any], content: dict[str, Any], where: str) -> Any:
    value = from_dict(content)
    if not isinstance(value, kind):
        raise RunError(
            f"{where} holds a {type(value).__name__} where a {kind.__name__} belongs; copy or make it again."
        )
    return value


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Let errors about values name the file the values come from."""
    try:
        yield
    except (InputError, PlanError, ConversionError) as error:
        raise RunError(f"{where} cannot be read: {error}") from error


def _specs(network: Any) -> list[dict[str, Any]]:
    return network if isinstance(network, list) else [network]


def _build_for(spec: Any, build: Builds | None, where: str) -> Builds:
    """Return the factory to use for a saved ensemble: the given one, or the zoo network the file names."""
    if build is not None:
        return build
    if spec is None:
        raise RunError(
            f"{where} was saved from a network that is not in choral's own model zoo, and a file never decides what code is "
            "run: give the factory yourself, choral.load(path, build=...)."
        )
    made = tuple(functools.partial(models.rebuild, one) for one in _specs(spec))
    return made[0] if len(made) == 1 else made


def _blueprint(saved: Saved) -> Blueprint:
    cpu = torch.device("cpu")
    return Blueprint(saved.build, saved.recipe.structure, device=cpu, images=False, interface=saved.interface)


def check_same(saved: Saved, where: str) -> None:
    """Raise RunError if the network that is built is not the one the members were trained in."""
    blueprint = _blueprint(saved)
    lines = list(changes(saved.fingerprint, blueprint.fingerprint()))
    if lines:
        raise RunError(
            f"the network that build makes is not the one of {where}: {'; '.join(lines[:3])}. Give the build the ensemble was fitted "
            "with; if the change makes no difference, load it with check_build=False."
        )


def check_fits(saved: Saved, where: str, *, given: bool) -> None:
    """Raise RunError if a stored member does not have the names, shapes and types of the network that is built.

    Args:
        saved: what was read.
        where: the file's name.
        given: whether the caller gave the network; errors of building it are then the caller's own.
    """
    blueprint = _blueprint(saved)
    for number in range(saved.count):
        state = saved.store.get(number)
        try:
            network = blueprint.network(state.form)
        except (InputError, PlanError, ConversionError):
            raise
        except Exception as error:  # a description from a file can fail in any way that torch knows
            if given:
                raise
            raise RunError(f"{where} describes a network that cannot be built: {error}") from error
        wanted = _shapes(network.named_parameters()) | _shapes(network.named_buffers())
        found = _shapes(state.params.items()) | _shapes(state.buffers.items())
        if wanted != found:
            odd = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))[:4]
            pairs = "; ".join(f"{n}: network {wanted.get(n)}, file {found.get(n)}" for n in odd)
            raise RunError(
                f"the network that build makes does not fit {where}, network {number} of it: {pairs}; "
                "give the build the ensemble was fitted with."
            )


def _shapes(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    return {n: f"{tuple(t.shape)}" + ("" if t.dtype == torch.float32 else f" {t.dtype}") for n, t in tensors}
