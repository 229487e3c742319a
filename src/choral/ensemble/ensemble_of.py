"""ensemble_of: networks that were trained anywhere, as an ensemble with all that choral does for one."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import draws, rng
from choral.base.errors import InputError, RunError
from choral.base.order import evaluating
from choral.base.types import Build
from choral.data.inputs import Transforms
from choral.data.sources import Source, source_of
from choral.engine.blueprint import state_of, uncompiled
from choral.engine.identity import fingerprint
from choral.engine.store import MemberStore
from choral.engine.task import Task, make_task
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import settle_noise
from choral.objectives.likelihoods import Likelihood
from choral.plan import Collect, Start, fork, seq
from choral.recipes.recipe import Combine, Recipe

_TRIED = 8  # points on which networks are compared
_PICKLED = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".pickle")


def ensemble_of(
    networks: Sequence[nn.Module | Mapping[str, Tensor] | str | Path],
    *,
    data: Any,
    build: Build | None = None,
    likelihood: Likelihood | str | None = None,
    transforms: Transforms = (),
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
        transforms: transforms of inputs that the networks expect, as in `choral.fit`.
        target, output: which part of the data and of what the networks return counts, as in `choral.fit`.
        combine: how members become one prediction of classes, 'probs' or 'logits'.
    """
    if build is not None and not callable(build):
        raise InputError(
            f"build is {build!r}; give the function that makes the network of state dicts and files, or leave it out."
        )
    items = _several(networks)
    given = [_network(item, build, i) for i, item in enumerate(items)]
    member = seq(Start(), Collect())
    plan = member if len(given) == 1 else fork(len(given), member)
    recipe = Recipe(name="given", plan=plan, combine=combine)
    store, source = MemberStore(), source_of(data, target)
    options: dict[str, Any] = {"inputs": transforms, "output": output, "likelihood": likelihood, "standardize": False}
    kinds: list[_Kind] = []
    for i, (item, network) in enumerate(zip(items, given)):
        written = repr(fingerprint(network))
        number = next((n for n, kind in enumerate(kinds) if kind.suits(network, written, item, source)), len(kinds))
        if number == len(kinds):
            kinds.append(_Kind(network, written, make_task(network, source, recipe, **options)))
            if not kinds[-1].suits(network, written, item, source):
                raise InputError(
                    f"networks[{i}] gives other outputs than a copy of it: it draws at random in evaluation mode, or a function, such as a forward "
                    "that was replaced by another one, remembers the network it was made for; write it as a method of the module's class."
                )
        store.put(i, state_of(network).having(form={"network": number} if number else None))
    tasks = [kind.task for kind in kinds]
    settled = tasks[0]
    likelihoods = {task.likelihood for task in tasks}
    if len(likelihoods) > 1:
        raise InputError(
            f"networks: their outputs mean different things ({', '.join(sorted(map(str, likelihoods)))}); give networks with the same outputs, "
            "or say what they mean with likelihood=."
        )
    if len({task.blueprint.interface.column for task in tasks}) > 1:
        raise InputError("networks: some return (batch,) and some (batch, 1); make their outputs alike.")
    builds = tuple(kind.network for kind in kinds)
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


@dataclass(frozen=True)
class _Kind:
    """Networks that compute the same from the same weights.

    Attributes:
        network: the first of them.
        written: what Python shows of it.
        task: how it is run.
    """

    network: nn.Module
    written: str
    task: Task

    def suits(self, network: nn.Module, written: str, item: Any, source: Source) -> bool:
        """Return whether this kind with a network's weights computes what the network does, as it was given.

        Args:
            network: a copy of the network.
            written: what Python shows of it.
            item: the network itself, or only its weights.
            source: points to try it on.
        """
        if written != self.written:
            return False
        x, _ = source.example(_TRIED)
        own = self.task.outputs(self.task.blueprint.holding(state_of(network)), x)
        given = item if isinstance(item, nn.Module) else network
        interface, ready = self.task.blueprint.interface, self.task.prepared(x, training=False)
        with torch.no_grad(), rng.seeded(0, "look"), draws.keyed(0), evaluating(given):
            wanted = interface.call(given, ready)
        if bool(wanted.isnan().any()):
            raise InputError(
                "a network gives NaN for the rows of data that it was tried on; look for NaN in its weights."
            )
        return torch.allclose(own[0].to(wanted), wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()) + 1e-12)


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
        return copy.deepcopy(uncompiled(item)).requires_grad_()
    where = f"networks[{number}]"
    if not isinstance(item, Mapping | str | Path):
        raise InputError(f"{where} is {type(item).__name__}; give an nn.Module, a state dict or a .safetensors path.")
    if build is None:
        raise InputError(f"{where} holds weights alone; give build=, the function that makes their network.")
    network = uncompiled(build())
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
