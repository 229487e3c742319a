"""Floating-point operations of one training point and one predicted point, counted by torch.

Products of masked weights are left out: a layer that keeps half of its weights counts half, in the forward pass and in both of its
gradients. `rehearse` walks a plan without its training, for what its operators refuse.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import shape_wrapper

from choral.base import batches, rng
from choral.data.sources import Source
from choral.engine.blueprint import state_of
from choral.engine.epochs import BranchContext
from choral.engine.inspect import Calls, Counting
from choral.engine.task import Task
from choral.layers.keyed import keyed
from choral.plan.phases import Fork, Operator, Phase, Starter
from choral.plan.state import State
from choral.plan.walk import Place, Visitor, first, once, walk

_ALL = "*"


def _convolution_backward(grad: Any, x: Any, weight: Any, *settings: Any, **_: Any) -> int:
    """Return the operations of a convolution's gradients, each as much as the forward pass; torch's formula takes grouped ones for dense."""
    transposed, output_mask = settings[4], settings[-1]
    places = (x if transposed else grad)[2:]
    forward = 2 * grad[0] * math.prod(places) * math.prod(weight)
    return forward * (int(output_mask[0]) + int(output_mask[1]))


def _recurrent(x: Any, *weights: Any, **_: Any) -> int:
    """Return the operations of a recurrent layer that is one kernel: every step by every weight; x is (step, batch, feature)."""
    first = weights[0]
    matrices = first if isinstance(first, list | tuple) and first and not isinstance(first[0], int) else weights[:2]
    return 2 * math.prod(x[:-1]) * sum(math.prod(w) for w in matrices if len(w) > 1)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Return the operations of attention that is one kernel of the processor: each query by each key, and by each value."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


_ops = torch.ops.aten
_KERNELS = {_ops.mkldnn_rnn_layer: _recurrent, _ops._cudnn_rnn: _recurrent}
_FORMULAS = {
    kernel: shape_wrapper(formula)
    for kernel, formula in {
        _ops.convolution_backward: _convolution_backward,
        **_KERNELS,
        _ops._scaled_dot_product_flash_attention_for_cpu: _attention,
        # gradients of inputs and of weights, each as much as the forward pass
        _ops.mkldnn_rnn_layer_backward: lambda *shapes, **_: 2 * _recurrent(*shapes),
        _ops._cudnn_rnn_backward: lambda *shapes, **_: 2 * _recurrent(*shapes),
        _ops._scaled_dot_product_flash_attention_for_cpu_backward: lambda _, *shapes, **__: 2 * _attention(*shapes),
    }.items()
}
"""Formulas of operations that torch counts otherwise, or has none for."""

_PRODUCTS = (_ops.mm, _ops.addmm, _ops.convolution, _ops.baddbmm, *_KERNELS)
"""Operations that multiply by weights; attention multiplies activations by bmm."""


@dataclass(frozen=True)
class _Counts:
    """Operations of one form of a network for each point."""

    train: float
    predict: float
    weights: dict[str, tuple[float, float]]  # of each weight, in training and in prediction
    layers: dict[str, float]  # of each layer in training
    sizes: dict[str, int]  # parameters of each layer, and of all


class Flops:
    """Counts a network's operations once for every form it takes (a compacted network costs less)."""

    def __init__(self, task: Task, source: Source):
        self.task, self.source = task, source
        self._known: dict[str, _Counts] = {}

    def train(self, state: State | None) -> float:
        """Return operations of one training point: forward and backward of the joint network, without masked weights."""
        return self._unmasked(state, 0)

    def predict(self, state: State | None) -> float:
        """Return operations of one predicted point: one forward pass of the joint network, without masked weights."""
        return self._unmasked(state, 1)

    def _unmasked(self, state: State | None, of: int) -> float:
        counts, masks = self._of(None if state is None else state.form), {} if state is None else state.mask
        whole = (counts.train, counts.predict)[of]
        known = {n: m for n, m in masks.items() if n in counts.weights}
        return whole - sum((1 - int(m.sum()) / m.numel()) * counts.weights[n][of] for n, m in known.items())

    def remaining(self, state: State, share: Mapping[str, float]) -> dict[str, float]:
        """Return parameters and operations still in use, as shares of the built network; `share` is that of active nodes by layer."""
        built, now = self._of(None), self._of(state.form)
        closed = sum((1 - part) * now.sizes.get(layer, 0) for layer, part in share.items())
        idle = sum((1 - part) * now.layers.get(layer, 0) for layer, part in share.items())
        return {
            "parameters": (now.sizes[_ALL] - closed) / max(built.sizes[_ALL], 1),
            "flops": (now.train - idle) / max(built.train, 1),
        }

    def _of(self, form: dict[str, Any] | None) -> _Counts:
        """Count one forward pass in evaluation mode, and one forward and backward pass, of a network, without changing it."""
        if repr(form) in self._known:
            return self._known[repr(form)]
        network, task = self.task.blueprint.network(form), self.task
        saved = {n: b.detach().clone() for n, b in network.named_buffers()}
        mode = network.training
        x, y = self.source.example(max(4, 2 * task.structure.members))  # a batch that splits over members
        x, y = batches.moved(x, task.device), y.to(task.device)
        calls = Calls(network)
        predict, train = Counting(calls, _FORMULAS), Counting(calls, _FORMULAS)
        with rng.seeded(0, "flops"), keyed(0), torch.no_grad(), calls, predict:
            network.eval()(task.fed(x))
        if task.structure.members > 1:  # a joint network looks once at every new number of rows
            with rng.seeded(0, "flops"), keyed(0), torch.no_grad():
                task.forward_loss(network.train(), x, y)
        with rng.seeded(0, "flops"), keyed(0), torch.enable_grad(), calls, train:
            task.forward_loss(network.train(), x, y).backward()
        # how often the operations of a module are done: forwards, and for each gradient that is needed
        learns = {n: any(p.requires_grad for p in m.parameters()) for n, m in network.named_modules()}
        passes = {n: 1 + given + learns[n] for n, given in calls.called.items()}
        network.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, b in network.named_buffers():
                b.copy_(saved[name])
        network.train(mode)
        weights, again = _by_weight(network, train.modules, passes), _by_weight(network, predict.modules, {})
        sizes = {n: sum(p.numel() for p in m.parameters(recurse=False)) for n, m in network.named_modules()}
        self._known[repr(form)] = found = _Counts(
            train.total / len(y),
            predict.total / len(y),
            {n: (weights[n] / len(y), again.get(n, 0.0) / len(y)) for n in weights},
            {n: sum(ops.values()) * passes.get(n, 1) / len(y) for n, ops in train.modules.items()},
            sizes | {_ALL: sum(p.numel() for p in network.parameters())},
        )
        return found


def _by_weight(
    network: nn.Module, counted: Mapping[str, Mapping[Any, int]], passes: Mapping[str, int]
) -> dict[str, float]:
    """Return the operations of each weight: a layer's products, shared by its weights (several in attention) by size."""
    names = {id(p): n for n, p in network.named_parameters()}
    found: dict[str, float] = {}
    for name, ops in counted.items():
        module = network.get_submodule(name)
        if any(n.startswith(f"{name}.") or (not name and n) for n in counted):
            continue  # its layers are counted on their own
        weights = [p for p in module.parameters() if p.dim() > 1]
        products = sum(count for op, count in ops.items() if op in _PRODUCTS) * passes.get(name, 1)
        for p in weights:
            part = products * p.numel() / sum(w.numel() for w in weights)
            found[names[id(p)]] = found.get(names[id(p)], 0.0) + part
    return found


def rehearse(task: Task, source: Source, plan: Phase) -> None:
    """Raise the errors of operators about the network (nothing to prune, for example) before training."""
    walk(plan, Reached(None, 1), replace(untrained(task, source), rounds=once))


def untrained(task: Task, source: Source) -> "Visitor[Reached]":
    """Return a visitor that applies to an untrained network what does not depend on training."""

    def change(phase: Operator, place: Place, reached: Reached) -> Reached:
        state = reached.state
        if state is None or not phase.foreseen or not set(phase.needs) <= state.slots.keys():
            return reached
        return reached._replace(state=phase.apply(state, BranchContext(task, source, 0, place)))

    def start(phase: Starter, place: Place, reached: Reached) -> Reached:
        return reached._replace(state=state_of(task.blueprint.network()))

    def branches(node: Fork, place: Place, reached: Reached) -> Iterator[tuple[Place, Reached]]:
        return first(node, place, reached._replace(times=reached.times * node.branches))

    return Visitor(change=change, start=start, branches=branches)


class Reached(NamedTuple):
    """The network before a phase, and the number of such networks."""

    state: State | None
    times: int
