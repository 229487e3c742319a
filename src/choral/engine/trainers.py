"""Two ways to take the same training steps, up to rounding: one network after the other, or stacked networks of equal shapes.

A trainer has the networks of one training phase: `mount` loads states, `step` takes one step for all of them, `states` returns the results.
"""

import threading
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap
from torch.fx import GraphModule, Node

from choral.base import batches, devices, draws, rng
from choral.base.batches import Batch
from choral.base.draws import Part
from choral.base.errors import ChoralError, InputError, first_line
from choral.base.types import Params
from choral.base.values import attributes
from choral.engine.blueprint import state_of
from choral.engine.compute import Piece
from choral.engine.task import Task
from choral.layers.convert import call_with, copy_of, holds, ties_of
from choral.layers.joint.network import Joint
from choral.layers.keyed import keyed
from choral.plan.optimizers import Member, Stepper, clip_gradients
from choral.plan.phases import Train, Variant
from choral.plan.state import State
from choral.structures.base import Structure


@dataclass(frozen=True)
class Sharing:
    """How the members of one joint network share its parameters: each gets the gradient of the mean loss of the members that use it.

    `Likelihood.loss` is the sum over members, with which a tensor of all M members would learn at M times the rate. So if something is shared,
    the mean is differentiated, and gradients of the members' own tensors, usually the smaller part, are multiplied by M.
    """

    members: int = 1
    owned: tuple[str, ...] = ()  # parameters that belong to one member, if others are shared
    averaged: bool = False  # whether anything is shared, so that the mean over members is differentiated, not the sum

    def likelihood(self, total: Tensor) -> Tensor:
        """Return what is differentiated, from the sum over members of the likelihood's loss."""
        return total / self.members if self.averaged else total

    def for_penalty(self, params: Params) -> Params:
        """Return the same values for the penalty, whose gradient `weigh` would otherwise multiply in owned tensors."""
        if not self.owned:
            return params
        part = 1 / self.members
        return {n: torch.lerp(p.detach(), p, part) if n in self.owned else p for n, p in params.items()}

    def weigh(self, params: Mapping[str, Tensor]) -> None:
        """Bring the gradients of owned tensors to those each member would get alone, in place."""
        for name in self.owned:
            if (grad := params[name].grad) is not None:
                grad.mul_(float(self.members))

    def logged(self, loss: Tensor) -> Tensor:
        """Return the loss to be shown: the mean over members, so that it compares with a plain network's."""
        return loss if self.averaged or self.members == 1 else loss / self.members


def sharing_of(structure: Structure, network: nn.Module) -> Sharing:
    """Return how the members of a joint network share it, as its structure declares."""
    shared = structure.shared(network)
    if structure.members == 1 or not (shared or structure.averages):
        return Sharing(structure.members)
    owned = () if structure.averages else tuple(n for n, _ in network.named_parameters() if n not in shared)
    return Sharing(structure.members, owned, True)


_ops = torch.ops.aten
_VIEWS = {_ops.view.default, _ops._unsafe_view.default, _ops.expand.default}
_BY_NUMBERS = {_ops.mul.Scalar, _ops.pow.Tensor_Scalar}
_LIKE: dict[Any, Any] = {_ops.ones_like.default: torch.ones, _ops.zeros_like.default: torch.zeros}
# what tensors offer by the same name, with the same arguments
_METHODS = {
    *["add", "bmm", "div", "expand", "mean", "mul", "neg", "pow", "relu", "sub", "sum", "tanh", "transpose", "view"]
}

_recording = threading.Lock()  # make_fx patches nn.Module while it runs, and two of them would not undo that in order


def record(function: Callable[..., Any], example: list[Tensor]) -> Callable[..., Any]:
    """Return the operations a function performs on tensors like the example, as a function of its own.

    20 MLPs (8-50-1, 600 steps) train 1.8 times faster by a record. It holds sizes as constants, and no randomness.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    with _recording:
        module = make_fx(function)(*example)
    _simplify(module)
    names = {str(node.target) for node in module.graph.nodes if node.op == "get_attr"}
    # finds its constants at once; modules look theirs up in three tables
    return types.MethodType(type(module).forward, types.SimpleNamespace(**{n: getattr(module, n) for n in names}))


def _simplify(module: GraphModule) -> None:
    """Leave out idle operations, compute constants once, turn narrow products and call operations by name: 20 MLPs (8-50-1) train 1.6 times
    faster so.
    """
    if any(node.target._schema.is_mutable for node in _operations(module)):
        return  # another operation may see what was written
    for rule in (_unchanged, _constant, _turned):
        for node in _operations(module):
            made = rule(module, node)
            if made is not None:
                node.replace_all_uses_with(made)
        module.graph.eliminate_dead_code()
    for node in _operations(module):
        name = node.target._schema.name.removeprefix("aten::")
        if name in _METHODS and isinstance(node.args[0], Node):
            node.op, node.target = "call_method", name
    module.recompile()


def _operations(module: GraphModule) -> list[Any]:
    return [node for node in module.graph.nodes if isinstance(node.target, type(_ops.view.default))]


def _unchanged(module: GraphModule, node: Node) -> Node | None:
    """Return the node whose values an operation gives back: a view of the same shape, x * 1, x ** 1, or what is transposed twice."""
    whole = node.args[0] if node.args else None
    if not isinstance(whole, Node):
        return None
    if node.target == whole.target == _ops.transpose.int and node.args[1:] == whole.args[1:]:
        return whole.all_input_nodes[0]
    idle = node.target in _VIEWS or (node.target in _BY_NUMBERS and node.args[1] == 1)
    return whole if idle and node.meta["val"].shape == whole.meta["val"].shape else None


def _turned(module: GraphModule, node: Any) -> Node | None:
    """Return a product of matrices in a faster form: of a column and a row by elements, and a gradient with fewer columns than rows
    transposed (8 features, 50 units: a third of the time).
    """
    if node.target != _ops.bmm.default:
        return None
    (first, second), graph = node.args, module.graph
    (rows, inner), columns = first.meta["val"].shape[1:], second.meta["val"].shape[2]
    is_gradient = all(user.op == "output" for user in node.users)
    if inner > 1 and (columns >= rows or not is_gradient):
        return None
    with graph.inserting_before(node):
        if inner == 1:
            found = graph.call_method("mul", node.args)
        else:
            turned = [graph.call_function(_ops.transpose.int, (matrix, 1, 2)) for matrix in (second, first)]
            product = graph.call_method("bmm", tuple(turned))
            found = graph.call_function(_ops.transpose.int, (product, 1, 2))
    found.meta.update(node.meta)
    return found


def _constant(module: GraphModule, node: Node) -> Node | None:
    """Return a node that holds a value which depends on no input."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return None
    if node.target in _LIKE:
        found = _LIKE[node.target](value.shape, dtype=value.dtype, device=value.device)
    elif all(used.op == "get_attr" for used in node.all_input_nodes):
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda used: getattr(module, str(used.target)))
        with torch.no_grad():
            found = node.target(*args, **kwargs)  # type: ignore[operator]  # an operation
    else:
        return None
    module.register_buffer(f"_constant_{node.name}", found, persistent=False)
    with module.graph.inserting_before(node):
        held = module.graph.get_attr(f"_constant_{node.name}")
    held.meta.update(node.meta)
    return held


_RECORDED_FROM = 100  # steps of a stack that repay recording them
UNMAPPED = (RuntimeError, NotImplementedError, ValueError, TypeError)
"""What torch.func stops with, or code of the user's under it, where networks cannot be trained stacked."""

_MAPPED = ("vmap", "functorch")
_JOINT = "members of this method are mapped by torch.func.vmap, which such code does not allow; use a method whose members are networks of their own"
_STACKED = "members are trained together here, which such code may not allow; use executor='sequential'"
_OWN = "mend it and give the same call again; finished parts of a run folder are kept"


def stopped(error: Exception, where: str, x: Batch, *, stacked: bool = False) -> ChoralError:
    """Return the error for an error in a training step, with its place in training and the batch."""
    advice = _STACKED if stacked else _JOINT if any(word in str(error) for word in _MAPPED) else _OWN
    gave = f"{type(error).__name__} {first_line(error)!r} for a batch {batches.in_words(x)}"
    return InputError(f"training stopped {where} where the network or the loss gave {gave}; {advice}.")


class Pace(NamedTuple):
    """The position of a step in its training phase: its number, the progress for penalties, and its learning rate."""

    step: int
    progress: float
    rate: float


class _Trainer:
    """The base of both trainers, of one or more networks of a training phase."""

    network: nn.Module  # that steps go through; there once states are mounted, as the next
    stepper: Stepper
    _states: Callable[[], list[State]]  # copies of the networks' states, on the device
    is_stacked = False

    def __init__(
        self, task: Task, phase: Train, points: Sequence[float], variants: Sequence[Variant] = (), *, steps: int = 1
    ):
        self.task, self.phase, self.points = task, phase, list(points)
        self.variants = variants or [Variant()] * len(self.points)  # in what each network differs
        self.steps = steps  # of a stack of one size
        self.total, self.count = torch.zeros(()), 0  # summed losses since they were last asked for, and steps
        self.catch = True  # whether torch's own dropout must be caught; found out on the first step of an epoch
        self.lend = task.findings.lends  # whether it draws otherwise, from a generator it must be lent
        self.params: Params = {}
        self.trained: Params = {}  # those that are not frozen
        self.mask: list[tuple[Tensor, Tensor]] = []  # parameters with zeros to keep, and where
        self.sharing = Sharing()

    def _stepper(self) -> Stepper:
        members = [Member(v.optimizer(self.phase.optimizer), v.get("rate", 1.0)) for v in self.variants]
        apart, undecayed = any(v.settings for v in self.variants), self.task.structure.undecayed
        joint = self.network.stacked if isinstance(self.network, Joint) else ()
        led = frozenset(n for n in self.params if n.removeprefix("network.") in joint)  # by the member axis
        return Stepper(self.trained, members, stacked=self.is_stacked, apart=apart, undecayed=undecayed, led=led)

    def _moved(self, x: Batch, y: Tensor, weights: Tensor | None) -> tuple[Batch, Tensor, Tensor | None]:
        device = self.task.device
        return batches.moved(x, device), devices.moved(y, device), weights if weights is None else weights.to(device)

    def _drop_gradients(self) -> None:
        for p in self.trained.values():
            p.grad = None

    def _advance(self, rate: float) -> None:
        """Clip the gradients as the phase's optimizer says, take its step, and count it."""
        self.sharing.weigh(self.params)
        clip, apart = self.phase.optimizer.clip, self.phase.optimizer.apart
        if clip is not None or self.phase.optimizer.coupled:
            for p, m in self.mask:  # what is removed neither counts for a norm nor turns a matrix
                if p.grad is not None:
                    p.grad.mul_(m)
        if clip is not None:
            clip_gradients(self.params, clip, apart=apart, stacked=self.is_stacked)
        self.stepper.step(rate)
        self._apply_mask()
        self.count += 1

    def losses(self) -> list[float]:
        """Return the mean training loss of each network since the last call."""
        means = [loss / max(self.count, 1) for loss in self.task.parts.summed(self.total).reshape(-1).tolist()]
        self.total, self.count = torch.zeros_like(self.total), 0
        return means

    def states(self, *, here: bool = False) -> list[State]:
        """Return copies of the networks' states, in plain memory unless they are wanted `here`, on the device."""
        found = self._states()
        if here or devices.is_processor(self.task.device):
            return found
        return [State.from_flat({n: t.cpu() for n, t in s.flat().items()}, s.form) for s in found]

    def _apply_mask(self) -> None:
        if self.mask:
            with torch.no_grad():
                for p, m in self.mask:
                    p.mul_(m)


class PlainTrainer(_Trainer):
    """One network: the network itself, its own parameters, the plain loop."""

    def mount(self, states: Sequence[State], keys: Sequence[int]) -> None:
        """Load the state into the shared network and restore the optimizer."""
        (self.state,), (self.key,) = states, keys
        self.network = self.task.blueprint.load(self.state).train()
        self.params = dict(self.network.named_parameters())
        self.trained = {n: p for n, p in self.params.items() if p.requires_grad}
        self.sharing = sharing_of(self.task.structure, self.network)
        device = self.task.device
        self.slots = {s: {n: t.to(device) for n, t in self.state.slots[s].items()} for s in self.task.objective.slots}
        self.mask = [(self.params[n], m.to(device, self.params[n].dtype)) for n, m in self.state.mask.items()]
        self._apply_mask()
        variant = self.variants[0]
        self._smoothing = variant.get("smoothing")
        self._dropout = None if variant.get("dropout") is None else draws.Rate.of(variant.get("dropout"))
        self.stepper = self._stepper()
        self.stepper.restore([self.state.memory])
        self.total, self.count = torch.zeros((), device=device), 0

    def step(self, x: Batch, y: Tensor, pace: Pace, weights: Tensor | None = None, part: Part | None = None) -> None:
        """Take one step, as a hand-written loop would."""
        task = self.task
        x, y, weights = self._moved(x, y, weights)
        self._drop_gradients()
        catch = self.catch
        whole = part is None and task.parts.accumulate == 1
        for piece in (Piece(x, y, weights),) if whole else task.parts.of(x, y, weights, task.likelihood, part):
            lending = rng.seeded(self.key, "unkeyed", pace.step) if self.lend else nullcontext()
            with (
                lending,
                task.parts.norms(part),
                keyed(self.key, pace.step, catch=catch, part=piece.part, dropout=self._dropout) as stream,
            ):
                total = task.forward_loss(
                    self.network, piece.x, piece.y, piece.weights, by_member=True, smoothing=self._smoothing
                )
                loss = self.sharing.likelihood(total)
            self.catch = stream.caught > 0
            self._add(loss, piece, pace.progress)
        if part is not None:
            task.parts.gather(self.trained)
        self._advance(pace.rate)

    def _add(self, loss: Tensor, piece: Piece, progress: float) -> None:
        """Add the gradient of one part of a batch; penalties come with the first."""
        if piece.part is not None:
            if self.lend:
                said = "the network draws by a function of torch whose numbers cannot be counted by row"
                said = f"{said}, such as dropout between layers of a recurrent network"
                raise InputError(f"{said}; train without data_parallel and accumulate.")
            loss = loss * piece.share
        if self.task.objective.penalties and (piece.part is None or not piece.part.start):
            params = self.sharing.for_penalty(self.params)
            loss = loss + self.task.objective.penalty(params, self.slots, progress, self.points[0])
        loss.backward()
        self.total += self.sharing.logged(loss.detach())

    def _states(self) -> list[State]:
        now, (memory,) = state_of(self.network, here=True), self.stepper.memories()
        return [self.state.having(params=now.params, buffers=now.buffers, memory=memory)]


class StackedTrainer(_Trainer):
    """Several networks of equal shapes at once: stacked leaves, one mapped loss, one backward, one optimizer."""

    is_stacked = True

    def mount(self, states: Sequence[State], keys: Sequence[int]) -> None:
        """Stack the states and restore the stacked optimizer."""
        self.held = list(states)
        device = self.task.device
        shared = self.task.blueprint.network(states[0].form)
        held = {id(t): t for t in (*shared.parameters(), *shared.buffers())}
        self.network = copy_of(shared, held).train()  # attributes that forward writes are mapped
        self._ties = ties_of(self.network)
        self.sharing = sharing_of(self.task.structure, self.network)

        def stacked(trees: Sequence[Params]) -> Params:
            return {n: t.to(device) for n, t in batches.stack(trees).items()}

        self.params = stacked([s.params for s in states])
        learns = {n for n, p in self.network.named_parameters() if p.requires_grad}
        self.trained = {n: t.requires_grad_() for n, t in self.params.items() if n in learns}
        self.fixed = {n: t for n, t in self.params.items() if n not in learns}
        self.buffers = stacked([s.buffers for s in states])
        self.slots = {slot: stacked([s.slots[slot] for s in states]) for slot in self.task.objective.slots}
        masks = stacked([s.mask for s in states])
        self.mask = [(self.params[n], m.to(self.params[n].dtype)) for n, m in masks.items()]
        self._apply_mask()
        self.stepper = self._stepper()
        self.stepper.restore([s.memory for s in states])
        points = torch.tensor(self.points, dtype=torch.float32).to(device)
        self.own = self._own_settings() | {"words": draws.words(*keys).view(-1, 2).to(device), "points": points}
        self.total, self.count = torch.zeros(len(states), device=device), 0
        self._pace = Pace(0, 0.0, 0.0)
        self._mapped = vmap(self._loss, randomness="error")
        self._signature = (repr(states[0].form), *self.slots, *map(batches.signature, self._held))
        self._drew = False
        heavy = holds(self.network, nn.modules.conv._ConvNd, nn.RNNBase)
        changing = any(p.changes for p in self.task.objective.penalties)
        other = changing or self.buffers or self.task.precision != "fp32" or self.task.ragged
        self._recordable = not (heavy or other) and self.steps >= _RECORDED_FROM

    def _own_settings(self) -> Params:
        """Return the settings in which networks differ within a forward pass, each as a tensor (network,)."""
        found: Params = {}
        dropout, smoothing = ([v.get(name) for v in self.variants] for name in ("dropout", "smoothing"))
        device = self.task.device
        if dropout[0] is not None:
            rates = [draws.Rate.of(rate) for rate in dropout]
            found["threshold"] = torch.tensor([rate.threshold for rate in rates], dtype=torch.int32, device=device)
            found["scale"] = torch.tensor([rate.scale for rate in rates], device=device)
        return found if smoothing[0] is None else found | {"smoothing": torch.tensor(smoothing, device=device)}

    def _loss(
        self, trained: Params, fixed: Params, buffers: Params, slots: Any, own: Params, *batch: Any
    ) -> tuple[Tensor, Params]:
        """Return the loss of one network, with its key and settings in `own`, and its buffers after it."""
        params = trained | fixed
        buffers = {n: b.clone() for n, b in buffers.items()}
        dropout = draws.Rate(own["threshold"], own["scale"]) if "threshold" in own else None
        with keyed(own["words"], self._pace.step, catch=self.catch, dropout=dropout) as stream:
            call = lambda i: call_with(self.network, params | buffers, i, self._ties)  # noqa: E731  # closes over this call's parameters
            total = self.task.forward_loss(call, *batch, by_member=True, smoothing=own.get("smoothing"))
            loss = self.sharing.likelihood(total)
        self._caught = stream.caught > 0
        self._drew = stream.site > 0
        if self.task.objective.penalties:
            penalty = self.task.objective.penalty(self.sharing.for_penalty(params), slots, self._pace.progress, 1)
            loss = loss + penalty / own["points"]
        return loss, buffers

    def step(self, x: Batch, y: Tensor, pace: Pace, weights: Tensor | None = None, part: Part | None = None) -> None:
        """Take one step for all networks."""
        self._pace = pace
        x, y, weights = self._moved(x, y, weights)
        own = () if weights is None else (weights,)
        traced = self._recorded(x, y, own)
        if traced is not None:
            with torch.no_grad():
                *grads, losses = traced(*self._inputs(x, y, own))
            for p, g in zip(self.trained.values(), grads):
                p.grad = g
        else:
            losses, buffers = self._mapped(self.trained, self.fixed, self.buffers, self.slots, self.own, x, y, *own)
            self.catch = self._caught
            self._drop_gradients()
            losses.sum().backward()
            self.buffers = {n: b.detach() for n, b in buffers.items()}
        self._advance(pace.rate)
        self.total += self.sharing.logged(losses.detach())

    @property
    def _held(self) -> list[Params]:
        return [self.trained, self.fixed, *self.slots.values(), self.own]

    def _inputs(self, x: Batch, y: Tensor, own: Sequence[Tensor]) -> list[Tensor]:
        """Return all that a recorded step reads."""
        held = [t for tensors in self._held for t in tensors.values()]
        return [*held, *own, y, *batches.leaves(x)]

    def _recorded(self, x: Batch, y: Tensor, own: Sequence[Tensor]) -> Callable[..., list[Tensor]] | None:
        """Return the recorded step for these shapes; None where steps must be mapped, by the network and the phase alone, so that resumed runs agree."""
        if not self._recordable:
            return None
        graphs, shapes = self.task.graphs, (self._signature, batches.signature(x), tuple(y.shape), len(own))
        if shapes not in graphs:
            self._drew = False

            def flat(*tensors: Tensor) -> list[Tensor]:
                given = iter(tensors)
                params, fixed, *slots, settings = ({n: next(given) for n in names} for names in self._held)
                step = vmap(grad_and_value(self._loss, has_aux=True), randomness="error")
                weights, targets = [next(given) for _ in own], next(given)
                held: Any = settings, batches.filled(x, given), targets, *weights
                grads, (losses, _) = step(params, fixed, {}, dict(zip(self.slots, slots)), *held)
                return [*(grads[n].contiguous() for n in params), losses]

            before, _ = attributes(self.network)
            with suppress(*UNMAPPED):
                graphs[shapes] = record(flat, [t.detach() for t in self._inputs(x, y, own)])
            if self._drew or attributes(self.network)[0] != before:  # a number that changes would be a constant
                graphs.pop(shapes, None)
            self._recordable = shapes in graphs
        return graphs.get(shapes)

    def _states(self) -> list[State]:
        count, memory = len(self.held), self.stepper.memories()
        params = batches.unstack({n: p.detach() for n, p in self.params.items()}, count)
        buffers = batches.unstack(self.buffers, count)
        return [s.having(params=params[i], buffers=buffers[i], memory=memory[i]) for i, s in enumerate(self.held)]


Trainer = PlainTrainer | StackedTrainer
