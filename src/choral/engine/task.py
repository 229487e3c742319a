"""Task: what is constant over a run, checked before training."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import batches, draws, rng
from choral.base.batches import Batch
from choral.base.devices import usable
from choral.base.errors import ChoralError, InputError, PlanError
from choral.base.text import fitting
from choral.base.types import Build
from choral.data.inputs import Mixing, Transforms, prepare
from choral.data.sources import Source
from choral.engine.blueprint import Blueprint
from choral.engine.compute import Parts, check_parts
from choral.engine.inspect import Findings, Plain, check_alone, inspect_plain, inspect_training, lost_weights
from choral.layers.joint.network import Joint
from choral.layers.keyed import keyed
from choral.objectives.likelihoods import Likelihood, resolve
from choral.objectives.penalties import Objective
from choral.plan.cost import batches_in
from choral.plan.phases import Phase
from choral.plan.walk import trainings
from choral.recipes.recipe import Recipe
from choral.structures.base import Structure

_WHOLE = Parts()
_NOTHING = Findings()
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ROWS = 4  # that the network is tried on
_LOOKED_AT = 256  # items of a dataset whose targets decide what the task is


@dataclass(frozen=True)
class Task:
    """What is constant over a run: structure, objective, input transforms, device and precision."""

    blueprint: Blueprint
    structure: Structure
    objective: Objective
    likelihood: Likelihood
    transforms: Transforms
    device: torch.device
    precision: str
    output_shape: tuple[int, ...] = ()  # of one point of one member
    floats: torch.dtype = torch.float32  # in which networks read real numbers
    ragged: bool = False  # whether batches of equally many points may have different shapes
    parts: Parts = _WHOLE  # how batches are taken
    findings: Findings = _NOTHING  # what is kept of the inspection of the network
    # recorded stacked steps
    graphs: dict[Any, Callable[..., list[Tensor]]] = field(default_factory=dict, compare=False)

    @cached_property
    def _mixing(self) -> Mixing | None:
        """The augmentation that mixes rows, if there is one."""
        given = () if isinstance(self.transforms, Mapping) else self.transforms
        found = next((t for t in given if isinstance(t, Mixing)), None)
        if found is not None and self.structure.own_batches:
            raise InputError(f"{type(found).__name__} mixes rows of one batch, but members read batches of their own.")
        return found

    @property
    def parameters(self) -> int:
        """Parameters of the network that is trained, for each of its members."""
        return sum(p.numel() for p in self.blueprint.network().parameters()) // self.structure.members

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the precision context of forward passes."""
        if self.precision in _HALF:
            torch.clear_autocast_cache()  # within an autocast of the caller's it holds the weights of the step before
            return torch.autocast(self.device.type, dtype=_HALF[self.precision])
        return nullcontext()

    def prepared(self, x: Batch, *, training: bool) -> Batch:
        """Return a batch ready for the network: bytes scaled, transforms applied."""
        if not self.transforms and isinstance(x, Tensor) and x.is_floating_point():
            return x
        return prepare(x, self.transforms, training=training, floats=self.floats)

    def fed(self, x: Batch) -> Batch:
        """Return a batch as the joint network reads it in evaluation."""
        return self.structure.feed(self.prepared(x, training=False), None)[0]

    def widened(self, outputs: Tensor) -> Tensor:
        """Return outputs in at least float32, for losses and probabilities."""
        return outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs

    def outputs(self, network: nn.Module, x: Batch) -> Tensor:
        """Return what a joint network in evaluation makes of a batch (member, batch, ...), without gradients."""
        with torch.no_grad(), rng.seeded(0, "look"), keyed(0), self.autocast():
            return self.run(network, self.fed(batches.moved(x, self.device)))

    def run(self, network: Callable[[Batch], Tensor], ready: Batch) -> Tensor:
        """Return the outputs of every member (member, batch, ...) for inputs as the structure feeds them."""
        if not self.structure.folds_members:
            return self.structure.unfold(network(ready))
        each = self.structure.members
        with draws.under(folded=each, rows=batches.rows(ready) // each):
            return self.structure.unfold(network(ready))

    def forward_loss(
        self,
        network: Any,
        x: Batch,
        y: Tensor,
        weights: Tensor | None = None,
        *,
        by_member: bool = False,
        smoothing: float | Tensor | None = None,
    ) -> Tensor:
        """Return the likelihood's loss of one batch, summed over members; draws follow the running stream.

        Where structures train on a batch for each member, `by_member` says that all axes have the member axis in front. `smoothing`
        of class labels replaces the likelihood's.

        Shapes: y (batch, ...), weights (batch,), 1 on average over the points a network is trained on.
        """
        structure, own = self.structure, self.structure.own_batches
        each = structure.members if own else 1

        def apart(t: Tensor) -> Tensor:
            """Return a batch of each member; one without a member axis is every member's."""
            return t.unflatten(0, (each, -1)) if by_member else t.expand(each, *t.shape)

        with self.autocast():
            mixing, partners, share = self._mixing, None, None
            if own:
                joined = batches.mapped(lambda t: t.flatten(0, 1), x) if by_member else x
                ready = batches.mapped(apart, self.prepared(joined, training=True))
                inputs, targets = structure.feed(ready, y if by_member else apart(y))
                outputs = structure.unfold(network(inputs))
                weights = weights if weights is None or by_member else apart(weights)
            else:
                ready = self.prepared(x, training=True)
                if mixing is not None and isinstance(ready, Tensor):
                    ready, partners, share = mixing.mixed(ready)
                straight = weights is None and partners is None
                rows = y if straight else torch.arange(len(y), device=y.device)  # as members read them
                inputs, targets = structure.feed(ready, rows)
                outputs = self.run(network, inputs)
        assert targets is not None
        wide = self.widened(outputs)
        if own or straight:
            return self._loss(wide, targets, weights, smoothing)

        def loss(rows: Tensor) -> Tensor:
            return self._loss(wide, y[rows], None if weights is None else weights[rows], smoothing)

        if partners is None or share is None:
            return loss(targets)
        return share * loss(targets) + (1 - share) * loss(partners[targets])

    def _loss(
        self, outputs: Tensor, targets: Tensor, weights: Tensor | None, smoothing: float | Tensor | None
    ) -> Tensor:
        given = (outputs, targets) if weights is None else (outputs, targets, weights.to(outputs.dtype))
        if smoothing is None:
            return self.likelihood.loss(*given)
        none, half = (self.likelihood.smoothed(share).loss(*given) for share in (0.0, 0.5))
        return none + (half - none) * (2 * smoothing)  # which is linear in the share


def check_runnable(recipe: Recipe) -> None:
    """Raise PlanError for an invalid plan."""
    found = recipe.problems()
    if found:
        said = "; ".join(found)
        raise PlanError(f"The recipe '{recipe.name}' cannot run: {said}{'' if said.endswith('?') else '.'}")


def _check_patterns(recipe: Recipe, network: nn.Module) -> None:
    """Raise InputError for a penalty whose name patterns match no parameter."""
    names = [name for name, _ in network.named_parameters()]
    names += [name.rpartition("_")[0] for name in names]  # posteriors go by the name without that of their halves
    for penalty in recipe.objective.penalties:
        fitting(names, getattr(penalty, "include", ()), f"{type(penalty).__name__}: include")


def make_task(
    build: Build | nn.Module,
    source: Source,
    recipe: Recipe,
    *,
    inputs: Transforms = (),
    output: Any = None,
    likelihood: Likelihood | str | None = None,
    standardize: bool | None = None,
    device: str | torch.device = "cpu",
    precision: str = "fp32",
    parts: Parts = _WHOLE,
) -> Task:
    """Return the checked task of a run: the network is built once and tried on the first points.

    Targets decide what is left open of the likelihood; other arguments are as in `choral.fit`.
    """
    place, structure = usable(device), recipe.structure
    plain = inspect_plain(build, source, structure, inputs=inputs, output=output, device=place)
    given, targets, weights = likelihood or recipe.objective.likelihood, source.targets(), source.weights
    whole = targets is not None  # else they are not in memory
    if targets is None:
        _, targets, weights = some_points(source)
    decided = resolve(given, targets, plain.shape, standardize=standardize, weights=weights, whole=whole)
    images = any(t.dim() == 4 for t in batches.leaves(plain.ready(source.example()[0])))
    interface = plain.interface
    settings = (structure, recipe.objective, decided, plain.transforms, place, precision)
    while True:
        blueprint = Blueprint(build, structure, device=place, images=images, interface=interface, built=plain.network)
        task = Task(blueprint, *settings, plain.shape, plain.floats, source.is_ragged, parts)
        network = task.blueprint.network().eval()
        check_parts(parts, structure, source.drawn(), recipe.plan)
        _check_patterns(recipe, network)
        try:
            return replace(task, findings=_inspected(task, source, recipe, plain))
        except ChoralError:
            # a kernel that fails or computes something else is left out, where the choice is choral's: it is an optimization
            if not isinstance(network, Joint) or network.kernel == "loop" or not network.is_open:
                raise
            interface = replace(interface, avoids=(*interface.avoids, network.kernel))


def _inspected(task: Task, source: Source, recipe: Recipe, plain: Plain) -> Findings:
    """Return what the inspection of a joint network finds; raises what would fail or train something else."""
    network = task.blueprint.network()
    rows = min(_smallest(source.drawn(), recipe.plan), _ROWS)
    x, y = source.reading(task.likelihood.read).example(rows or _ROWS)
    x, y = batches.moved(x, task.device), y.to(task.device)

    def loss(network: Callable[[Batch], Any]) -> Tensor:
        if rows:
            return task.forward_loss(network, batches.mapped(torch.clone, x), y.clone())
        return task.run(network, task.structure.feed(plain.ready(x), None)[0])

    found = inspect_training(network, task.structure, plain, loss, rows=rows and len(y), link=task.likelihood.link)
    if task.structure.members > 1:
        check_alone(network, task.structure, plain.ready(x))
    lost = lost_weights(task.blueprint, recipe)
    return replace(found, doubts=(lost, *found.doubts)) if lost else found


def _smallest(points: int, plan: Phase) -> int:
    """Return the rows of the smallest batch of a plan, 0 if it trains nothing."""
    sizes = [t.batch_size or points for t in trainings(plan) if t.epochs]
    return min((min(n, points - (batches_in(points, n) - 1) * n) for n in sizes), default=0)


def some_points(source: Source, most: int = _LOOKED_AT) -> tuple[Batch, Tensor, Tensor | None]:
    """Return the inputs, targets and weights of points at even distances, as one batch."""
    rows = torch.linspace(0, source.points - 1, min(source.points, most)).round().long()
    x, y = next(iter(source.epoch(rows, len(rows))))
    return x, y, None if source.weights is None else source.weights[rows]
