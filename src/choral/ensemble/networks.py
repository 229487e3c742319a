"""Your own networks: ensembles of networks trained elsewhere, and choral's structures in your own training loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import rng
from choral.base.errors import InputError
from choral.base.interface import evaluating
from choral.base.types import Build
from choral.base.values import full_precision, guarded
from choral.data.inputs import Transform, Transforms
from choral.data.sources import Source, as_targets, source_of
from choral.data.tensors import cast_targets
from choral.engine.blueprint import state_of, uncompiled
from choral.engine.checkpoint import MemberStore
from choral.engine.identity import fingerprint
from choral.engine.task import Task, make_task
from choral.engine.trainers import sharing_of
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import settle_noise
from choral.layers.convert import copy_of
from choral.layers.keyed import keyed
from choral.objectives.likelihoods import Likelihood
from choral.plan import Collect, Start, fork, seq
from choral.recipes import recipe_of
from choral.recipes.recipe import Combine, Recipe

_TRIED = 8  # points on which networks are compared


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
    """Return an ensemble of networks that were trained elsewhere, to predict, calibrate, evaluate, save and report.

    Networks may differ in their layers if they take the same inputs and their outputs have the same meaning. They are copied, and the
    copies are put in evaluation mode.

    >>> import torch
    >>> nets = [nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2)) for width in (4, 8)]
    >>> ensemble = ensemble_of(nets, data=(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])))
    >>> ensemble.members, tuple(ensemble.predict(torch.randn(5, 3)).probs.shape)
    (2, (5, 2))

    Args:
        networks: networks; or, with `build`, their weights as state dicts or paths of .safetensors files.
        data: rows (x, y), preferably of the training data. They determine the meaning of the outputs; every network is run on them; and
            an unknown Gaussian noise is estimated on them.
        build: returns the network to which state dicts and files belong.
        likelihood: the meaning of the outputs, as in `choral.fit`.
        transforms: transforms of inputs that the networks expect, as in `choral.fit`.
        target, output: the target in the data, and the output of the networks, as in `choral.fit`.
        combine: how predictions of classes are averaged: 'probs', 'logits' or 'vote'.
    """
    if not isinstance(networks, Sequence | nn.ModuleList) or not networks:
        raise InputError(
            f"networks is {type(networks).__name__}; give a list of at least one network, state dict or .safetensors path."
        )
    items: list[Any] = list(networks)
    given = [_network(item, build, i) for i, item in enumerate(items)]
    member = seq(Start(), Collect())
    plan = member if len(given) == 1 else fork(len(given), member)
    recipe = Recipe(name="given", plan=plan, combine=combine)
    store, source = MemberStore(), source_of(data, target)
    options: dict[str, Any] = {"inputs": transforms, "output": output, "likelihood": likelihood, "standardize": False}
    kinds: list[tuple[str, nn.Module, Task]] = []  # networks that compute the same from the same weights
    for i, (item, network) in enumerate(zip(items, given)):
        written = repr(fingerprint(network))
        alike = (n for n, (w, _, task) in enumerate(kinds) if w == written and _computes(task, network, item, source))
        number = next(alike, len(kinds))
        if number == len(kinds):
            kinds.append((written, network, make_task(network, source, recipe, **options)))
            if not _computes(kinds[-1][2], network, item, source):
                raise InputError(
                    f"networks[{i}] gives other outputs than a copy of it: it draws at random in evaluation mode, or a function, such as a forward "
                    "that was replaced by another one, remembers the network it was made for; write it as a method of the module's class."
                )
        store.put(i, state_of(network).having(form={"network": number} if number else None))
    _, builds, tasks = zip(*kinds)
    likelihoods = {task.likelihood for task in tasks}
    if len(likelihoods) > 1:
        raise InputError(
            f"networks: their outputs mean different things ({', '.join(sorted(map(str, likelihoods)))}); give networks with the same outputs, "
            "or say what they mean with likelihood=."
        )
    if len({task.blueprint.interface.column for task in tasks}) > 1:
        raise InputError("networks: some return (batch,) and some (batch, 1); make their outputs alike.")
    ensemble = Ensemble(
        builds if len(builds) > 1 else builds[0],
        recipe,
        likelihoods.pop(),
        store,
        len(given),
        inputs=tasks[0].transforms,
        interface=tasks[0].blueprint.interface,
    )
    settle_noise(ensemble, source.reading(ensemble.likelihood.read))
    return ensemble


def _computes(task: Task, network: nn.Module, item: Any, source: Source) -> bool:
    """Return whether a task's network with the weights of another gives the same outputs on some rows."""
    x, _ = source.example(_TRIED)
    own = task.outputs(task.blueprint.holding(state_of(network)), x)
    given = item if isinstance(item, nn.Module) else network
    with torch.no_grad(), rng.seeded(0, "look"), keyed(0), evaluating(given):
        wanted = task.blueprint.interface.call(given, task.prepared(x, training=False))
    if bool(wanted.isnan().any()):
        raise InputError("a network gives NaN for the rows of data that it was tried on; look for NaN in its weights.")
    return torch.allclose(own[0].to(wanted), wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()) + 1e-12)


def _network(item: Any, build: Build | None, number: int) -> nn.Module:
    if isinstance(item, nn.Module):
        return copy_of(uncompiled(item)).requires_grad_()
    where = f"networks[{number}]"
    if not isinstance(item, Mapping | str | Path):
        raise InputError(f"{where} is {type(item).__name__}; give an nn.Module, a state dict or a .safetensors path.")
    if build is None:
        raise InputError(f"{where} contains only weights; give build=, a function that returns their network.")
    network = uncompiled(build())
    from safetensors.torch import load_file  # which opens no pickle

    network.load_state_dict(dict(item) if isinstance(item, Mapping) else load_file(item))
    return network


class Converted:
    """A joint network with its loss, for your own training loop: pass the parameters of `network` to an optimizer.

    `points` is the number of training rows, or the sum of their weights, by which penalties such as a KL are divided.
    """

    def __init__(self, task: Task, recipe: Recipe, given: nn.Module, source: Source, seed: int):
        self._task, self._recipe, self._given, self._source = task, recipe, given, source
        state = task.blueprint.given(seed, "own")
        assert state is not None, "a network was given"
        self.network: nn.Module = copy_of(task.blueprint.load(state)).train()
        self.points, self._key = source.mass(), rng.key(seed, "own", "train")
        self._sharing = sharing_of(recipe.structure, self.network)
        for name, p in self.network.named_parameters():
            if name in self._sharing.owned and p.requires_grad:
                # as a member alone would get it: the loss is the mean over members where something is shared
                p.register_hook(lambda gradient: gradient * self._sharing.members)

    def loss(self, x: Any, y: Tensor, *, step: int, progress: float = 1.0, weights: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as in `choral.fit`: likelihood and penalty. It is not affected by a surrounding autocast.

        Args:
            x: inputs of a batch.
            y: its targets, as they are in the data.
            step: the number of the step, which seeds all random draws.
            progress: progress of training from 0 to 1, for penalties that rise during training.
            weights: a weight for each row, 1 on average over the training data; None weights all rows equally.
        """
        with full_precision():
            targets = cast_targets(self._task.likelihood.read(as_targets(y)), self._task.floats)
            with keyed(self._key, step):
                loss = self._sharing.likelihood(self._task.forward_loss(self.network, x, targets, weights))
            if self._recipe.objective.penalties:
                params = self._sharing.for_penalty(dict(self.network.named_parameters()))
                loss = loss + self._recipe.objective.penalty(params, {}, progress, self.points)
            return loss

    @guarded
    def ensemble(self) -> Ensemble:
        """Return the ensemble of the current members."""
        store = MemberStore()
        store.put(0, state_of(self.network))
        recipe, task = self._recipe, self._task
        interface = task.blueprint.interface
        ensemble = Ensemble(self._given, recipe, task.likelihood, store, 1, inputs=task.transforms, interface=interface)
        settle_noise(ensemble, self._source.reading(task.likelihood.read))
        return ensemble


@guarded
def converted(
    network: nn.Module,
    recipe: Recipe,
    *,
    data: Any,
    likelihood: Likelihood | str | None = None,
    transforms: tuple[Transform, ...] = (),
    seed: int = 0,
) -> Converted:
    """Return a network converted to the structure of a recipe, with its loss, for your own training loop; the plan is not used.

    >>> import torch
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 3
    >>> from choral.recipes import packed
    >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    >>> own = converted(net, packed(members=2, epochs=1), data=(x, y))
    >>> optimizer = torch.optim.SGD(own.network.parameters(), lr=0.1)
    >>> for step in range(3):
    ...     own.loss(x, y, step=step).backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> own.ensemble().members
    2

    Args:
        network: a plain network; it is copied, and its weights are kept if the structure allows it.
        recipe: any recipe; its structure and objective are used.
        data: training data, as in `choral.fit`. They determine the meaning of the outputs and the number of rows.
        likelihood: the meaning of the outputs, as in `choral.fit`.
        transforms: transforms of input batches, as in `choral.fit`.
        seed: seed of the conversion and of all draws in the loss.
    """
    recipe = recipe_of(recipe)
    if recipe.objective.slots:
        raise InputError(
            f"the objective of '{recipe.name}' needs {', '.join(recipe.objective.slots)}, which its plan makes; use choral.fit for it."
        )
    alone = replace(recipe, plan=seq(Start(), Collect()), enough=False)
    source = source_of(data)
    task = make_task(network, source, alone, inputs=transforms, likelihood=likelihood)
    return Converted(task, alone, network, source, seed)
