"""Loading saved ensembles, from one file or a run folder.

Before a file is used, its checksum, schema and sizes are checked, and whether its weights fit the network. The limits on sizes are far
above those of real networks and apply to files only.
"""

import contextlib
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from choral import models
from choral.base.errors import ConversionError, InputError, PlanError, RunError, warn
from choral.base.interface import Interface
from choral.base.types import Builds
from choral.base.values import KINDS, Function, of_kind
from choral.calibration.members import Correction
from choral.data.inputs import Transform
from choral.engine.checkpoint import MemberStore, state_from
from choral.engine.files import expect, unpack_tensors
from choral.engine.folder import read_costs, read_likelihood, read_plan, run_of
from choral.engine.identity import FINGERPRINT, changes
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import chosen
from choral.objectives.likelihoods import Likelihood
from choral.plan.cost import cost
from choral.recipes.recipe import Recipe
from choral.tables.table import Table

_COUNTED = {
    "batch_repetition", "branches", "components", "draws", "members", "minimum_channels", "scale", "subgroups", "times", "width",
}  # fmt: skip
_COUNT = 100_000  # of each of these, which a recipe in a file may ask for
_NETWORKS = 1_000_000
_ARGUMENT = 10_000_000  # any number a network is built from
_DEPTH = 2_000  # layers
_PARAMETERS = 100_000_000
_GROWTH = 1_000  # parameters built for each one that is stored


def check_counts(content: Any, where: str) -> None:
    """Raise RunError for a count in a recipe from a file that is out of bounds."""
    match content:
        case dict():
            for name, value in content.items():
                if name in _COUNTED and type(value) in (int, float):
                    check(name, value, _COUNT, where)
                check_counts(value, where)
        case list():
            for value in content:
                check_counts(value, where)


def check(name: str, value: float, most: float, where: str) -> None:
    """Raise RunError for a number from a file that is negative or too large."""
    if not 0 <= value <= most:
        raise RunError(
            f"{where} asks for {name} = {value:,}, but 0 to {most:,} are read from a file; "
            "it is damaged or was not made by choral."
        )


def check_network(spec: Mapping[str, Any], structure: Mapping[str, Any], stored: int, where: str) -> None:
    """Raise RunError if the network that a file names is far larger than its stored weights.

    Args:
        spec: the network's name and arguments.
        structure: the structure as a dict; its members and widths enlarge the network.
        stored: numbers stored for one network.
        where: the file's name.
    """
    for name, value in spec["arguments"].items():
        numbers = value if isinstance(value, list) else [value]
        layers = value if name == "depth" and isinstance(value, int) else len(numbers)
        check(f"network.{name}: layers", layers, _DEPTH, where)
        for number in numbers:
            if isinstance(number, int | float):
                check(f"network.{name}", abs(number), _ARGUMENT, where)
    with torch.device("meta"):  # shapes alone, without memory
        plain = sum(p.numel() for p in models.rebuild(spec).parameters())
    grown = plain * structure.get("members", 1) * max(1.0, structure.get("width") or 2.0) ** 2
    grown *= (structure.get("mixture") or {}).get("components", 1)
    check("network: parameters", math.ceil(grown), max(_PARAMETERS, _GROWTH * stored), where)


_HEADER = {
    "format": int,
    "recipe": dict,
    "likelihood": dict,
    "inputs": list | dict,
    "interface": dict,
    "network": dict | list | None,
    "forms": list,
    "table": dict | None,
    "info": dict,
    "posthoc": list[dict],
    "fingerprint": dict,
}


def load_bytes(data: bytes, where: str, build: Builds | None = None, **options: Any) -> Ensemble:
    """Return the ensemble in bytes written by `Ensemble.save`; `where` names them in errors, options are those of `_ensemble`."""
    with _naming(where):
        tensors, header = unpack_tensors(data, where)
        if "format" not in header:
            raise RunError(f"{where} is not a saved ensemble (a member of a run?); give a file made by Ensemble.save.")
        expect(expect(header, _HEADER, where)["fingerprint"], FINGERPRINT, where)
        store, count = _members(tensors, header["forms"], where), len(header["forms"])
        table = None if header["table"] is None else of_kind(Table, header["table"], where)
        return _ensemble(header, store, count, build, where, table=table, info=header["info"], **options)


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


def load_folder(path: Path, build: Builds | None, *, partial: bool, **options: Any) -> Ensemble:
    """Return the ensemble in a run folder; `partial` leaves out missing or damaged members, with a warning."""
    where = str(path)
    with _naming(where):
        plan = read_plan(path)
        if plan is None:
            raise RunError(f"{path} is not a run folder: it has no plan.json; give a run folder or a saved file.")
        identity, run = plan["identity"], run_of(plan)
        recipe = _recipe(identity["recipe"], where)
        networks = cost(recipe.plan).networks
        check("networks", networks, _NETWORKS, where)
        try:
            info = read_costs(path)
        except RunError as error:  # it says what the run cost and decides nothing
            warn(f"{error} The ensemble is loaded without its costs.")
            info = {}
        store, count = _present(path, run, info.get("kept") or range(networks), partial)
        completed = read_likelihood(path, run)
        store, count, weights = chosen(store, count, recipe)
        about = identity | {
            "network": plan["network"],
            "fingerprint": expect(identity.get("network"), FINGERPRINT, where),
            "likelihood": identity["likelihood"] if completed is None else completed.to_dict(),
            "posthoc": [w.to_dict() for w in weights],
        }
        table = None if plan["table"] is None else of_kind(Table, plan["table"], where)
        found = _ensemble(about, store, count, build, where, table=table, info=info, **options)
        if completed is None and found.likelihood.estimates:  # it is written when all members are trained
            lost = f"the noise of the run in {path} is not known (likelihood.json is missing or damaged)"
            if not partial:
                raise RunError(f"{lost}; run the same fit again, or load it so: choral.load(path, partial=True).")
            warn(f"{lost}, so predicted deviations are those of the targets.")
        return found


def _present(path: Path, run: str, expected: Sequence[int], partial: bool) -> tuple[MemberStore, int]:
    """Return the store of a folder's members and how many it contains of these numbers."""
    lost = MemberStore(path / "members", run=run).lost(max(expected) + 1)
    lost, count = {number: why for number, why in lost.items() if number in expected}, len(expected)
    kept = [i for i in expected if i not in lost]
    if lost:
        first = next((f"; {why}" for why in lost.values() if why != "missing"), "")
        named = ", ".join(map(str, list(lost)[:8])) + (", ..." if len(lost) > 8 else "")
        said = (
            f"the run in {path} is not complete: {len(lost)} of {count} networks are missing (numbers {named}{first})"
        )
        if not partial or not kept:
            rest = "; choral.load(path, partial=True) loads the others" if kept else ""
            raise RunError(f"{said}; run it again to finish{rest}.")
        warn(f"{said}; the other {len(kept)} were loaded.")
    return MemberStore(path / "members", run=run, numbers=kept), len(kept)


def _recipe(content: dict[str, Any], where: str) -> Recipe:
    check_counts(content, where)
    recipe: Recipe = of_kind(Recipe, content, where)
    found = recipe.problems()
    if found:
        raise RunError(f"{where} holds a recipe that cannot run ({found[0]}); copy or make it again.")
    return recipe


def _ensemble(
    about: dict[str, Any],
    store: MemberStore,
    count: int,
    build: Builds | None,
    where: str,
    *,
    table: Table | None,
    info: dict[str, Any],
    output: Any = None,
    likelihood: Likelihood | None = None,
    check_build: bool = True,
) -> Ensemble:
    """Return the ensemble that plain content describes, all of it checked; the last three arguments are those of `choral.load`."""
    recipe = _recipe(about["recipe"], where)
    found = Ensemble(
        _zoo(about["network"], recipe, store, count, where) if build is None else build,
        recipe,
        _likelihood(about["likelihood"], likelihood, where),
        store,
        count,
        inputs=_transforms(about["inputs"], where),
        interface=_interface(about["interface"], output, where),
        table=table,
        info=info,
        posthoc=tuple(of_kind(Correction, v, where) for v in about["posthoc"]),
    )
    _check_fits(found, where)
    checked = build is not None and check_build
    lines = list(changes(about["fingerprint"], found._blueprint.fingerprint())) if checked else []
    if lines:
        raise RunError(
            f"the network that build makes is not the one of {where}: {'; '.join(lines[:3])}. Give the build the ensemble was fitted "
            "with; if the change makes no difference, load it with check_build=False."
        )
    return found


def _transforms(content: Any, where: str) -> Any:
    if type(content) is dict:
        return {name: _transforms(own, where) for name, own in content.items()}
    return tuple(of_kind(Transform, t, where) for t in content)


def _interface(content: dict[str, Any], output: Any, where: str) -> Interface:
    """Return the interface of the networks; a function that selects their output must be given again."""
    found = of_kind(Interface, content, where)
    if not isinstance(found.output, Function):
        if output is not None:
            raise RunError(f"output is given, but {where} contains the output of its networks; leave it out.")
        return found
    if output is None or Function.of(output).name != found.output.name:
        given = "" if output is None else f", not {Function.of(output).name}"
        raise RunError(
            f"the output of the networks in {where} is selected by the function {found.output.name}, and files contain no code; give "
            f"it again{given}: choral.load(path, build, output=...)."
        )
    return replace(found, output=Function.of(output))


def _likelihood(content: dict[str, Any], given: Likelihood | None, where: str) -> Likelihood:
    """Return the likelihood that a file names; your own class must be defined, and functions must be given again."""
    kind = str(content.get("kind"))
    if given is not None and type(given).__name__ != kind:
        raise RunError(
            f"{where} was fitted with the likelihood {kind}, but likelihood is {type(given).__name__}; give its own."
        )
    if kind not in KINDS:
        raise RunError(
            f"{where} was fitted with the likelihood {kind}, which is not defined here, and files contain no code: import the "
            "module that defines it first, or give it, choral.load(path, likelihood=...)."
        )
    found: Likelihood = of_kind(Likelihood, content, where)
    return found if given is None else found.with_functions_of(given)


@contextlib.contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except (InputError, PlanError, ConversionError) as error:
        raise RunError(f"{where} cannot be read: {error}") from error


def _zoo(network: Any, recipe: Recipe, store: MemberStore, count: int, where: str) -> Builds:
    """Return the factories of choral's own networks that a file names, none larger than its stored weights."""
    if network is None:
        raise RunError(
            f"{where} was saved from a network that is not in choral's own model zoo, and a file never decides what code is "
            "run: give the factory yourself, choral.load(path, build=...)."
        )
    specs = network if type(network) is list else [network]
    stored = max(sum(p.numel() for p in store.get(i).params.values()) for i in range(count))
    for spec in specs:
        expect(spec, {"name": str, "arguments": dict}, where)
        check_network(spec, recipe.structure.to_dict(), stored, where)
    made = tuple(functools.partial(models.rebuild, spec) for spec in specs)
    return made[0] if len(made) == 1 else made


def _check_fits(ensemble: Ensemble, where: str) -> None:
    for number, state in enumerate(ensemble.states()):
        network = ensemble._blueprint.network(state.form)
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
