"""converted: a network in one of choral's structures, for a training loop of the user's own."""

import copy
from typing import Any

from torch import Tensor, nn

from choral.base import draws, rng
from choral.base.arguments import full_precision, guarded
from choral.base.errors import InputError
from choral.data.given import cast_targets
from choral.data.inputs import Transform
from choral.data.sources import Source, as_targets, source_of
from choral.engine.blueprint import state_of
from choral.engine.store import MemberStore
from choral.engine.task import Task, make_task
from choral.engine.trainers import sharing_of
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import settle_noise
from choral.objectives.likelihoods import Likelihood
from choral.plan import Collect, Start, seq
from choral.recipes import recipe_of
from choral.recipes.recipe import Recipe


class Converted:
    """A joint network with its loss, to be trained by any loop.

    Attributes:
        network: the joint network; give its parameters to an optimizer.
        points: training points, or the sum of their weights, by which a penalty such as a KL is divided.
    """

    def __init__(self, task: Task, recipe: Recipe, given: nn.Module, source: Source, seed: int):
        self._task, self._recipe, self._given, self._source = task, recipe, given, source
        state = task.blueprint.given(seed, "own")
        assert state is not None, "a network was given"
        self.network: nn.Module = copy.deepcopy(task.blueprint.load(state)).train()
        self.points, self._key = source.mass(), rng.key(seed, "own", "train")
        self._sharing = sharing_of(recipe.structure, self.network)
        for name, p in self.network.named_parameters():
            if name in self._sharing.owned and p.requires_grad:
                p.register_hook(self._as_alone)

    def _as_alone(self, gradient: Tensor) -> Tensor:
        """Return the gradient a member would get alone; the loss is the mean over members where something is shared."""
        return gradient * self._sharing.members

    def loss(self, x: Any, y: Tensor, *, step: int, progress: float = 1.0, weights: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as choral's engine has it: layout, likelihood and penalty; an autocast around it does not count.

        Args:
            x: inputs of a batch.
            y: its targets, as they are in the data.
            step: the number of the step, which keys every random draw.
            progress: from 0 to 1, for penalties that rise during training.
            weights: what each point counts, 1 on average over the training data; all alike if None.
        """
        with full_precision():
            targets = cast_targets(self._task.likelihood.read(as_targets(y)), self._task.floats)
            return self._loss(x, targets, step, progress, weights)

    def _loss(self, x: Any, targets: Tensor, step: int, progress: float, weights: Tensor | None) -> Tensor:
        with draws.keyed(self._key, step):
            loss = self._sharing.likelihood(self._task.forward_loss(self.network, x, targets, weights))
        if self._recipe.objective.penalties:
            params = self._sharing.for_penalty(dict(self.network.named_parameters()))
            loss = loss + self._recipe.objective.penalty(params, {}, progress, self.points)
        return loss

    @guarded
    def ensemble(self) -> Ensemble:
        """Return the ensemble of the network's members as they are now."""
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
    """Return a network in the structure of a recipe, with its loss, for a loop of your own; its plan is not used.

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
        network: a plain network; it is copied, its weights are kept where the structure can keep them.
        recipe: any recipe; its structure and objective are used.
        data: training data, as in `choral.fit`: says what the outputs mean and how many points there are.
        likelihood: what the outputs mean, as in `choral.fit`.
        transforms: transforms of input batches, as in `choral.fit`.
        seed: of the conversion and of every draw in the loss.
    """
    if not isinstance(network, nn.Module):
        raise InputError(f"network is {type(network).__name__}; give an nn.Module.")
    recipe = recipe_of(recipe)
    if recipe.objective.slots:
        raise InputError(
            f"the objective of '{recipe.name}' needs {', '.join(recipe.objective.slots)}, which its plan makes; use choral.fit for it."
        )
    alone = Recipe(
        name=recipe.name,
        plan=seq(Start(), Collect()),
        structure=recipe.structure,
        objective=recipe.objective,
        combine=recipe.combine,
    )
    source = source_of(data)
    task = make_task(network, source, alone, inputs=transforms, likelihood=likelihood)
    return Converted(task, alone, network, source, seed)
