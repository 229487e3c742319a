"""Floating-point operations of one training point and one predicted point, counted by torch."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from choral import draws
from choral.data.inputs import prepare
from choral.data.sources import Source
from choral.engine.trainers import Task
from choral.plan.state import State

_ALL = "*"


def _convolution_backward(grad: Any, x: Any, weight: Any, *settings: Any, **_: Any) -> int:
    """Return the operations of a convolution's gradients: each costs as much as the forward pass, grouped or not.

    torch's own formula takes the gradient of a grouped convolution's weights for a dense one.
    """
    transposed, output_mask = settings[4], settings[-1]
    places = (x if transposed else grad)[2:]
    forward = 2 * grad[0] * math.prod(places) * math.prod(weight)
    return forward * (int(output_mask[0]) + int(output_mask[1]))


_FORMULAS = {torch.ops.aten.convolution_backward: _convolution_backward}


class Flops:
    """Counts a network's operations once for every form it takes (a compacted network costs less)."""

    def __init__(self, task: Task, source: Source):
        self.task, self.source = task, source
        self._train: dict[str, float] = {}
        self._predict: dict[str, float] = {}
        self._layers: dict[str, dict[str, int]] = {}  # operations of one training batch by layer, and of all
        self._sizes: dict[str, dict[str, int]] = {}  # parameters by layer, and of all

    def train(self, state: State | None) -> float:
        """Return operations of one training point: forward and backward of the joint network."""
        form = None if state is None else state.form
        if repr(form) not in self._train:
            self._count(form)
        return self._train[repr(form)]

    def predict(self, state: State | None) -> float:
        """Return operations of one predicted point: one forward pass of the joint network."""
        self.train(state)
        return self._predict[repr(None if state is None else state.form)]

    def remaining(self, state: State, share: Mapping[str, float]) -> dict[str, float]:
        """Return the parameters and operations still at work, as shares of those of the network that was built.

        Args:
            state: gives the form, whose layers are counted.
            share: nodes at work in each layer that can lose some, as a share of those its tensors hold.
        """
        for form in (None, state.form):
            if repr(form) not in self._layers:
                self._count(form)
        shares = {}
        for name, counts in (("parameters", self._sizes), ("flops", self._layers)):
            now = counts[repr(state.form)]
            closed = sum((1 - part) * now.get(layer, 0) for layer, part in share.items())
            shares[name] = (now[_ALL] - closed) / max(counts["None"][_ALL], 1)
        return shares

    def _count(self, form: dict | None) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        network = self.task.blueprint.network(form)
        saved = {n: b.detach().clone() for n, b in network.named_buffers()}
        mode = network.training
        x, y = self.source.example(max(4, 2 * self.task.structure.members))  # a batch that splits over members
        x, y = x.to(self.task.device), y.to(self.task.device)
        with draws.keyed(0), FlopCounterMode(display=False, custom_mapping=_FORMULAS) as counter:
            loss = self.task.forward_loss(network.train(), x, y)
            loss.backward()
        self._train[repr(form)] = counter.get_total_flops() / len(x)
        root = type(network).__name__
        by_layer = {
            n.removeprefix(root).removeprefix("."): sum(c.values()) for n, c in counter.get_flop_counts().items()
        }
        self._layers[repr(form)] = by_layer | {_ALL: counter.get_total_flops()}
        sizes = {n: sum(p.numel() for p in m.parameters(recurse=False)) for n, m in network.named_modules()}
        self._sizes[repr(form)] = sizes | {_ALL: sum(p.numel() for p in network.parameters())}
        with draws.keyed(0), FlopCounterMode(display=False) as counter, torch.no_grad():
            inputs, _ = self.task.structure.feed(prepare(x, self.task.transforms, training=False), None)
            network.eval()(inputs)
        self._predict[repr(form)] = counter.get_total_flops() / len(x)
        network.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, b in network.named_buffers():
                b.copy_(saved[name])
        network.train(mode)
