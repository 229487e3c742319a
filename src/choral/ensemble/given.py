"""ensemble_of: networks that were trained anywhere, as an ensemble with all that choral does for one."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from choral.base.errors import InputError, RunError
from choral.base.types import Build
from choral.data.inputs import Transforms
from choral.data.sources import source_of
from choral.engine.blueprint import described, state_of
from choral.engine.store import MemberStore
from choral.engine.task import make_task
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.noise import settle_noise
from choral.objectives.likelihoods import Likelihood
from choral.plan import Collect, Start, fork, seq
from choral.recipes.recipe import Combine, Recipe

_PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle")


def ensemble_of(
    networks: Sequence[nn.Module | Mapping[str, Tensor] | str | Path],
    *,
    data: Any,
    build: Build | None = None,
    likelihood: Likelihood | str | None = None,
    inputs: Transforms = (),
    target: str | int | None = None,
    output: str | int | Callable[[Any], Tensor] | None = None,
    combine: Combine = "probs",
) -> Ensemble:
    """Return networks trained by any means as an ensemble: predict, calibrate, judge, save and report it.

    Networks may differ in their layers as long as they read the same inputs and their outputs mean the same. They are copied
    and put in evaluation mode; yours are not touched.

    >>> import torch
    >>> nets = [nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2)) for width in (4, 8)]
    >>> ensemble = ensemble_of(nets, data=(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])))
    >>> ensemble.members, tuple(ensemble.predict(torch.randn(5, 3)).probs.shape)
    (2, (5, 2))

    Args:
        networks: networks; or, with `build`, their weights as state dicts or paths of .safetensors files.
        data: a few points (x, y), or what they were trained on: says what the outputs mean, every network is
            tried on it, and a Gaussian noise that is not given is estimated on it.
        build: makes the network that state dicts and files belong to.
        likelihood: what the outputs mean, as in `choral.fit`.
        inputs: transforms of inputs that the networks expect, as in `choral.fit`.
        target, output: which part of the data and of what the networks return counts, as in `choral.fit`.
        combine: how members become one prediction of classes, 'probs' or 'logits'.
    """
    if build is not None and not callable(build):
        raise InputError(
            f"build is {build!r}; give the function that makes the network of state dicts and files, or leave it out."
        )
    given = [_network(item, build, i) for i, item in enumerate(_several(networks))]
    kinds: dict[str, int] = {}
    for network in given:
        kinds.setdefault(described(network), len(kinds))
    first = {kind: next(n for n in given if described(n) == kind) for kind in kinds}
    member = seq(Start(), Collect())
    plan = member if len(given) == 1 else fork(len(given), member)
    recipe = Recipe(name="given", plan=plan, combine=combine)
    store, source = MemberStore(), source_of(data, target)
    options: dict[str, Any] = {"inputs": inputs, "output": output, "likelihood": likelihood, "standardise": False}
    tasks = {kind: make_task(first[kind], source, recipe, **options) for kind in kinds}
    settled = next(iter(tasks.values()))
    likelihoods = {task.likelihood for task in tasks.values()}
    if len(likelihoods) > 1:
        raise InputError(
            f"networks: their outputs mean different things ({', '.join(sorted(map(str, likelihoods)))}); give networks with the same outputs, "
            "or say what they mean with likelihood=."
        )
    if len({task.blueprint.interface.column for task in tasks.values()}) > 1:
        raise InputError("networks: some return (batch,) and some (batch, 1); make their outputs alike.")
    for i, network in enumerate(given):
        number = kinds[described(network)]
        store.put(i, state_of(network).having(form={"network": number} if number else None))
    builds = tuple(first.values())
    ensemble = Ensemble(
        builds if len(builds) > 1 else builds[0],
        recipe,
        likelihoods.pop(),
        store,
        len(given),
        inputs=settled.transforms,
        interface=settled.blueprint.interface,
    )
    settle_noise(ensemble, source.reading(ensemble.likelihood.read))
    return ensemble


def _several(networks: Any) -> Sequence[Any]:
    if isinstance(networks, nn.ModuleList):
        return list(networks)
    if isinstance(networks, nn.Module | Mapping | str | Path) or not isinstance(networks, Sequence) or not networks:
        raise InputError(
            f"networks is {type(networks).__name__}; give a list of at least one network, state dict or .safetensors path."
        )
    return networks


def _network(item: Any, build: Build | None, number: int) -> nn.Module:
    """Return one of the networks given, whatever it was given as."""
    if isinstance(item, nn.Module):
        return copy.deepcopy(item).requires_grad_()
    where = f"networks[{number}]"
    if not isinstance(item, Mapping | str | Path):
        raise InputError(f"{where} is {type(item).__name__}; give an nn.Module, a state dict or a .safetensors path.")
    if build is None:
        raise InputError(f"{where} holds weights alone; give build=, the function that makes their network.")
    network: nn.Module = build()
    weights = item if isinstance(item, Mapping) else _file(Path(item), where)
    try:
        network.load_state_dict(dict(weights))
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InputError(f"{where} does not fit the network that build makes: {' '.join(lines[1:3])}") from error
    return network


def _file(path: Path, where: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if path.suffix in _PICKLED:
        raise InputError(
            f"{where}: {path.name} is a pickle, which could run code when it is opened, so choral never opens one; load it yourself "
            "(torch.load(path, weights_only=True)) and give the state dict."
        )
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{where}: {path} cannot be read ({error}); give a .safetensors file.") from error
