"""Compaction: a network with removed neurons becomes a smaller network with the same outputs."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from choral.compaction.form import Form, shrink
from choral.compaction.solve import Example, Kept, Solution, Untraceable, checked, masked, run, runs, solve, traced
from choral.compaction.tracer import tensors_in

_TOLERANCE = 1e-4


@dataclass(frozen=True)
class CompactReport:
    """What compaction did, in numbers of before and after, and what it left.

    Args:
        parameters: parameters before and after.
        flops: floating-point operations of one forward pass on the example, before and after.
        removed: channels removed, by layer.
        kept: channels that were asked to go but stay, with the reason.
        difference: largest difference between the outputs of both networks on the example.
    """

    parameters: tuple[int, int]
    flops: tuple[int, int]
    removed: dict[str, int]
    kept: tuple[Kept, ...]
    difference: float

    def __str__(self) -> str:
        lines = [f"parameters {self.parameters[0]:,} -> {self.parameters[1]:,}"]
        lines.append(f"FLOPs {self.flops[0]:,} -> {self.flops[1]:,}")
        lines += [f"kept {len(k.channels)} channels of {k.layer}: {k.reason}" for k in self.kept]
        return "\n".join(lines)


@dataclass(frozen=True)
class CompactResult:
    """A compacted network, the form by which it is rebuilt, and the report."""

    network: nn.Module
    form: Form
    report: CompactReport


def plan_compaction(network: nn.Module, keep: Mapping[str, Tensor], example_input: Example) -> Solution:
    """Return the form of the compacted network (see `form`), and what its layers take over from removed channels.

    Arguments as in `compact`, and checked in the same way. The values of the compacted network are those that
    `slice_params` takes with the form, after the folds were added.
    """
    return _solve_and_check(network, keep, example_input)[0]


def compact(network: nn.Module, keep: Mapping[str, Tensor], example_input: Example) -> CompactResult:
    """Return a smaller network with the outputs that the network has, in evaluation mode, without some neurons.

    A removed neuron has zero weights and bias. Rows are removed with the matching columns of all that reads them,
    through normalization, pooling, flattening, sums, products, concatenations and depthwise or grouped convolutions. A
    removed neuron that still emits a constant (the shift of a BatchNorm behind it) is folded into the bias of the next
    layer; where the bias cannot represent it (zero-padding, no bias), one such neuron stays, and its outgoing weights
    take over those of the others. Channels that cannot go - summed with live ones, under the statistics of a LayerNorm,
    read by attention or by a function with no rule - stay and are named in the report. The result is run on the example
    next to the original; layers whose removal changes anything stay whole.

    Args:
        network: any network; it is not changed.
        keep: True for the output channels that stay, (output channel,) by layer name; other layers stay whole.
        example_input: one input batch, or a tuple of the arguments of the network's `forward`.

    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> small = compact(network, {"0": torch.arange(8) < 5}, torch.randn(3, 4)).network
    >>> small[0].weight.shape, small[2].weight.shape
    (torch.Size([5, 4]), torch.Size([2, 5]))
    """
    solution, small, difference = _solve_and_check(network, keep, example_input)
    before = masked(network, checked(network, keep)).eval()
    after = copy.deepcopy(small).eval()
    report = CompactReport(
        parameters=(_count(network), _count(small)),
        flops=(_flops(before, example_input), _flops(after, example_input)),
        removed=solution.removed,
        kept=solution.kept,
        difference=difference,
    )
    return CompactResult(small, solution.form, report)


def _solve_and_check(
    network: nn.Module, keep: Mapping[str, Tensor], example: Example
) -> tuple[Solution, nn.Module, float]:
    """Return a solution that was run on the example, the small network, and how far its outputs are."""
    wanted = checked(network, keep)
    dead = masked(network, wanted)
    expected = runs(dead, example)
    try:
        tracer = traced(network, wanted, example)
    except Untraceable as reason:
        return _untouched(wanted, dead, str(reason))
    solution = solve(network, wanted, tracer)
    small, distance, problem = _attempt(dead, solution, example, expected)
    if not problem:
        return solution, small, distance
    # some step was not what it seemed (a size written into forward): take layers one by one, as far as they go
    refused = dict.fromkeys(wanted, "")
    for layer in wanted:
        refused.pop(layer)
        trial = solve(network, wanted, tracer, refused)
        problem = _attempt(dead, trial, example, expected)[2]
        if problem:
            refused[layer] = f"the smaller network failed: {problem}"
    solution = solve(network, wanted, tracer, refused)
    small, distance, problem = _attempt(dead, solution, example, expected)
    if problem:
        return _untouched(wanted, dead, f"the smaller network failed: {problem}")
    return solution, small, distance


def _untouched(keep: Mapping[str, Tensor], dead: nn.Module, reason: str) -> tuple[Solution, nn.Module, float]:
    kept = tuple(Kept(k, tuple((~v).nonzero().flatten().tolist()), reason) for k, v in keep.items() if not v.all())
    form: Form = {"axes": {}, "attributes": {}}
    return Solution(form, (), kept, {}), copy.deepcopy(dead), 0.0


def _attempt(dead: nn.Module, solution: Solution, example: Example, expected: object) -> tuple[nn.Module, float, str]:
    """Return the small network, its distance from the expected outputs, and what is wrong with it, if anything."""
    try:
        whole = copy.deepcopy(dead)
        parameters = dict(whole.named_parameters())
        with torch.no_grad():
            for fold in solution.folds:
                parameters[fold.target][fold.where] += fold.added(parameters[fold.weight])
        small = shrink(whole, solution.form)
        modes = {name: module.training for name, module in small.named_modules()}
        outputs = run(small.eval(), example)
        for name, module in small.named_modules():
            module.training = modes[name]
    except Exception as error:  # forward code of the user's may fail in any way
        return dead, float("inf"), f"{type(error).__name__}: {error}".splitlines()[0]
    pairs = list(zip(tensors_in(outputs), tensors_in(expected)))
    if any(one.shape != other.shape for one, other in pairs):
        return small, float("inf"), "its outputs have other shapes"
    distance = max((float((a - b).detach().abs().max()) for a, b in pairs if a.numel()), default=0.0)
    scale = max((float(b.detach().abs().max()) for _, b in pairs if b.numel()), default=0.0)
    if not distance <= _TOLERANCE * max(1.0, scale):
        return small, distance, f"its outputs differ by {distance:.2g}"
    return small, distance, ""


def _count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def _flops(network: nn.Module, example: Example) -> int:
    with FlopCounterMode(display=False) as counter:
        run(network, example)
    return counter.get_total_flops()
