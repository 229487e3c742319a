"""Saved ensembles, one file or a run folder, read back into the parts an ensemble is made of."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from choral import models
from choral.data.inputs import Transform
from choral.engine.blueprint import Blueprint
from choral.engine.files import pack_tensors, unpack_tensors, write_bytes
from choral.engine.store import MemberStore, member_tensors, state_from
from choral.errors import RunError
from choral.objectives.likelihoods import Likelihood
from choral.plan.state import State
from choral.recipe import Recipe
from choral.types import Build
from choral.values import Value, from_dict

_FORMAT = 1


@dataclass(frozen=True)
class Saved:
    """What a file or folder holds: everything an ensemble is made of."""

    build: Build | nn.Module
    recipe: Recipe
    likelihood: Likelihood
    store: MemberStore
    count: int
    inputs: tuple[Transform, ...]
    table: dict[str, Any] | None
    info: dict[str, Any]
    posthoc: tuple[Value, ...] = ()


def save_file(path: Path, states: Iterable[State], about: dict[str, Any]) -> None:
    """Write networks and what is known about them into one file."""
    if path.is_dir():
        raise RunError(f"{path} is a folder; give a file name such as {path / 'ensemble.choral'}.")
    tensors: dict[str, Tensor] = {}
    forms: list[Any] = []
    for i, state in enumerate(states):
        forms.append(state.form)
        tensors |= {f"{i:05d}/{n}": t for n, t in member_tensors(state).items()}
    write_bytes(path, pack_tensors(tensors, {"format": _FORMAT, "forms": forms} | about))


def load_file(path: Path, build: Build | nn.Module | None) -> Saved:
    """Return what a file written by `save_file` holds."""
    tensors, header = unpack_tensors(path.read_bytes(), str(path))
    if header.get("format") != _FORMAT:
        raise RunError(
            f"{path} is not a choral ensemble of format {_FORMAT} (found {header.get('format')}); "
            "save it again with this version of choral."
        )
    parts: list[dict[str, Tensor]] = [{} for _ in header["forms"]]
    for full, tensor in tensors.items():
        number, name = full.split("/", 1)
        parts[int(number)][name] = tensor
    store = MemberStore()
    for i, (part, form) in enumerate(zip(parts, header["forms"])):
        store.put(i, state_from(part, form))
    saved = Saved(
        build_for(header["network"], build, str(path)),
        from_dict(header["recipe"]),
        from_dict(header["likelihood"]),
        store,
        len(parts),
        inputs=tuple(from_dict(t) for t in header["inputs"]),
        table=header["table"],
        info=header["info"],
        posthoc=tuple(from_dict(v) for v in header.get("posthoc", ())),
    )
    check_fits(saved, str(path))
    return saved


def build_for(spec: dict[str, Any] | None, build: Build | nn.Module | None, where: str) -> Build | nn.Module:
    """Return the factory to use for a saved ensemble: the given one, or the zoo network the file names."""
    if build is not None:
        return build
    if spec is None:
        raise RunError(
            f"{where} was saved from a network that is not in choral's own model zoo, and a file never decides what code is "
            "run: give the factory yourself, choral.load(path, build=...)."
        )
    return lambda: models.rebuild(spec)


def check_fits(saved: Saved, where: str) -> None:
    """Raise RunError if stored members do not have the names and shapes of the network that was built."""
    blueprint = Blueprint(saved.build, saved.recipe.structure, device=torch.device("cpu"), images=False)
    state = saved.store.get(0)
    network = blueprint.network(state.form)
    wanted = {n: tuple(p.shape) for n, p in network.named_parameters()}
    found = {n: tuple(p.shape) for n, p in state.params.items()}
    if wanted != found:
        odd = sorted(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))[:4]
        pairs = "; ".join(f"{n}: network {wanted.get(n)}, file {found.get(n)}" for n in odd)
        raise RunError(
            f"the network that build makes does not fit {where}: {pairs}; give the build the ensemble was fitted with."
        )
