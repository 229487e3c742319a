"""Compaction: a network with removed neurons becomes a smaller network with the same outputs."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from choral.base.interface import evaluating
from choral.compaction.form import Form, shrink
from choral.compaction.solve import Example, Solution, Untraceable, checked, masked, run, solve, traced
from choral.compaction.tracer import tensors_in

_TOLERANCE = 1e-4


@dataclass(frozen=True)
class CompactResult(Solution):
    """A compacted network, and how it was made.

    Its values are those of `slice_params` with the form, after the folds were added.
    """

    network: nn.Module


def compact(network: nn.Module, keep: Mapping[str, Tensor], example_input: Example) -> CompactResult:
    """Return a smaller network with the same outputs in evaluation mode, without some neurons.

    A removed neuron has zero weights and bias. Rows are removed with the matching columns of all their readers,
    through normalization, pooling, flattening, sums, products, concatenations and depthwise or grouped convolutions. A
    removed neuron that still emits a constant (the shift of a BatchNorm after it) is folded into the bias of the next
    layer; if the bias cannot represent it (zero-padding, no bias), one such neuron stays, and its outgoing weights
    take over those of the others. Channels that cannot be removed - summed with live ones, under the statistics of a LayerNorm,
    read by attention or by a function without a rule - stay; `kept` names them. The result is compared with the original on the
    example; layers whose removal changes anything stay whole.

    Args:
        network: any network; it is not changed.
        keep: True for the output channels to keep, (output channel,) by layer name; other layers stay whole.
        example_input: one input batch, or a tuple of the arguments of the network's `forward`.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> small = compact(network, {"0": torch.arange(8) < 5}, torch.randn(3, 4)).network
    >>> small[0].weight.shape, small[2].weight.shape
    (torch.Size([5, 4]), torch.Size([2, 5]))
    """
    wanted = checked(network, keep)
    dead = masked(network, wanted)
    expected = run(copy.deepcopy(dead).eval(), example_input)
    try:
        tracer = traced(network, wanted, example_input)
    except Untraceable:
        return _untouched(wanted, dead)
    solution = solve(network, wanted, tracer)
    small = _attempt(dead, solution, example_input, expected)
    if small is None:
        # some step was not what it seemed (a size written into forward): take layers one by one, as far as they go
        refused = set(wanted)
        for layer in wanted:
            trial = solve(network, wanted, tracer, refused - {layer})
            if _attempt(dead, trial, example_input, expected) is not None:
                refused.remove(layer)
        solution = solve(network, wanted, tracer, refused)
        small = _attempt(dead, solution, example_input, expected)
    return _untouched(wanted, dead) if small is None else CompactResult(**vars(solution), network=small)


def _untouched(keep: Mapping[str, Tensor], dead: nn.Module) -> CompactResult:
    kept = {layer: tuple((~v).nonzero().flatten().tolist()) for layer, v in keep.items() if not v.all()}
    form: Form = {"axes": {}, "attributes": {}}
    return CompactResult(form, (), kept, {}, copy.deepcopy(dead))


def _attempt(dead: nn.Module, solution: Solution, example: Example, expected: object) -> nn.Module | None:
    try:
        whole = copy.deepcopy(dead)
        parameters = dict(whole.named_parameters())
        with torch.no_grad():
            for fold in solution.folds:
                parameters[fold.target][fold.where] += fold.added(parameters[fold.weight])
        small = shrink(whole, solution.form)
        with evaluating(small):
            outputs = run(small, example)
    except Exception:  # forward code of the user's may fail in any way
        return None
    pairs = list(zip(tensors_in(outputs), tensors_in(expected)))
    if any(one.shape != other.shape for one, other in pairs):
        return None
    distance = max((float((a - b).detach().abs().max()) for a, b in pairs if a.numel()), default=0.0)
    scale = max((float(b.detach().abs().max()) for _, b in pairs if b.numel()), default=0.0)
    return small if distance <= _TOLERANCE * max(1.0, scale) else None
