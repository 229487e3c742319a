"""Try one training call before a run begins: what fails, fails here, and state that members would share is said."""

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from choral.base import batches, draws, rng
from choral.base.errors import ChoralError, InputError
from choral.base.interface import described
from choral.data.datasets import global_states, moved
from choral.data.sources import Source
from choral.engine.fingerprint import attributes, held_tensors
from choral.engine.task import Task
from choral.plan.cost import batches_in
from choral.plan.phases import Phase
from choral.plan.walk import Visitor, trainings, walk
from choral.recipes.recipe import Recipe

_ROWS = 4
_AGAIN = 5  # calls that confirm what a network is suspected of
_RESHAPES = ("View", "Squeeze", "Unsqueeze", "Reshape", "UnsafeView")


def try_training(task: Task, source: Source, plan: Phase) -> str | None:
    """Call the loss of a copy of the network as training will, with as few rows as the smallest batch has, at most 4.

    Raises InputError if that fails, and warns of numbers, words and tensors that the network keeps in attributes and changes: they
    are in no checkpoint, and all members see them. Returns the name of such a tensor, if there is one.
    """
    rows = _smallest(source.drawn(), plan)
    if not rows:
        return None
    network = copy.deepcopy(task.blueprint.network()).train()
    before, generators = attributes(network), global_states()
    x, y = source.example(min(rows, _ROWS))

    def call() -> Tensor:
        with torch.enable_grad(), rng.seeded(0, "try"), draws.keyed(0):
            return task.forward_loss(network, batches.moved(x, task.device), y.to(task.device)).detach()

    try:
        remembered = _remembered(network, call)
        _refuse_constant(task, network, batches.moved(x, task.device), y.to(task.device))
    except ChoralError:
        raise
    except Exception as error:  # code of the user's may fail in any way
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            _otherwise_trained(network, batches.moved(x, task.device))
            or f"the network cannot be trained on a batch of {len(y)} row(s): '{said}'; {_advice(len(y))}"
        ) from error
    for name in _drawn_from(moved(generators, ("numpy", "random")), call):
        warnings.warn(
            f"the network draws from {'numpy.random' if name == 'numpy' else 'the module random'} when it is called, which no seed of "
            "choral's decides: two runs, and a resumed one, will differ; draw with torch instead.",
            stacklevel=3,
        )
    _doubt_outputs(task, batches.moved(x, task.device))
    after = attributes(network)
    changed = [n for n in after if after[n] != before.get(n)]
    if changed or remembered:
        name = remembered or changed[0]
        what = "a tensor" if remembered else f"{before.get(name, 'absent')} became {after[name]}"
        warnings.warn(
            f"the attribute {name!r} of the network changes when it is called ({what}): all members share it, and "
            "checkpoints do not keep it, so members and resumed runs may differ; make it a buffer (register_buffer).",
            stacklevel=3,
        )
    return remembered


def _refuse_constant(task: Task, network: nn.Module, x: Any, y: Tensor) -> None:
    """Take the gradient of a loss once; raises InputError for one that depends on no parameter."""
    with torch.enable_grad(), rng.seeded(0, "try"), draws.keyed(0):
        loss = task.forward_loss(network, batches.mapped(torch.clone, x), y).sum()
        if not loss.requires_grad:
            raise InputError(
                "the loss depends on no parameter of the network that is to be trained, so nothing would be learned; leave the tensors of "
                "forward and of the loss attached (no detach, item, numpy or no_grad on the way)."
            )
        trained = [p for p in network.parameters() if p.requires_grad]
        torch.autograd.grad(loss, trained, allow_unused=True)


def _drawn_from(names: Iterable[str], call: Callable[[], Any]) -> list[str]:
    """Return the generators that every call moves: other threads may draw from them too, but not each time."""
    found = list(names)
    for _ in range(_AGAIN if found else 0):
        generators = global_states()
        call()
        found = [name for name in found if name in moved(generators, (name,))]
    return found


def _otherwise_trained(network: nn.Module, x: Any) -> str:
    """Return what to say of a network that returns something else in training than in evaluation; nothing of any other."""
    try:
        with torch.no_grad(), rng.seeded(0, "try"), draws.keyed(0):
            found = network(x)
    except Exception:  # code of the user's may fail in any way
        return ""
    if isinstance(found, Tensor):
        return ""
    return (
        f"the network returns {described(found)} in training mode, but a tensor in evaluation mode; give fit(..., output=function) with a "
        "function that takes the output from both."
    )


def _doubt_outputs(task: Task, x: Any) -> None:
    """Warn of outputs that went through the function already which the likelihood puts them through: probabilities where logits belong."""
    link = task.likelihood.link
    if not link:
        return
    try:
        with torch.enable_grad(), rng.seeded(0, "try"), draws.keyed(0):
            network = nn.Module.to(task.blueprint.plain(), task.device).eval()
            node = network(task.prepared(x, training=False)).grad_fn
    except Exception:  # code of the user's may fail in any way, and a doubt is not worth it
        return
    while type(node).__name__.startswith(_RESHAPES):
        node = node.next_functions[0][0]
    if type(node).__name__ == f"{link}Backward0":
        warnings.warn(
            f"the network ends with {link.lower()}, and its outputs are read as logits, which go through {link.lower()} once more: probabilities "
            f"then hardly leave the middle; leave the last {link.lower()} out.",
            stacklevel=4,
        )


def _remembered(network: nn.Module, call: Callable[[], Tensor]) -> str | None:
    """Call a loss, and return the name of a tensor attribute that carries something from call to call.

    One that is only left behind, such as the last activations, is the same after another call on the same rows.
    """
    before, buffers = held_tensors(network), {n: b.clone() for n, b in network.named_buffers()}
    loss, after = call(), held_tensors(network)
    changed = [n for n in after if n not in before or not _is_same(before[n], after[n])]
    if not changed:
        return None
    with torch.no_grad():
        for name, b in network.named_buffers():
            if name in buffers and b.shape == buffers[name].shape:
                b.copy_(buffers[name])
    again, last = call(), held_tensors(network)
    moved = [n for n in changed if n not in last or not _is_same(after[n], last[n])]
    return next(iter(moved), None) if _is_same(loss, again) else (moved or changed)[0]


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, equal_nan=True)


def say_what_is_lost(task: Task, recipe: Recipe) -> None:
    """Warn if the user hands over trained weights that the recipe does not start from."""
    blueprint, taken = task.blueprint, list[bool]()
    walk(recipe.plan, None, Visitor(start=lambda phase, _, __: taken.append(phase.takes_given)))
    resized = task.structure.draws_anew
    redrawn = blueprint.parent is not None and not any(taken) and task.structure.keeping() == task.structure
    loaded = blueprint.parent is None and resized and blueprint.brings_weights
    if loaded or ((redrawn or resized) and blueprint.has_learned):
        advice = (
            "since members have layers of other sizes; use a method that keeps whole layers, such as batch_ensemble or treenet."
            if resized
            else "and all members start afresh; use a recipe that starts from them (pretrained=True, or parent_epochs=0, where there is one), or give "
            "a function that builds the network."
        )
        warnings.warn(
            f"the network handed over has weights of its own, but '{recipe.name}' draws its weights anew, {advice}",
            stacklevel=3,
        )


def _smallest(points: int, plan: Phase) -> int:
    """Return the rows of the smallest batch of a plan, 0 if it trains nothing."""
    sizes = [t.batch_size for t in trainings(plan) if t.epochs]
    return min((min(n, points - (batches_in(points, n) - 1) * n) for n in sizes), default=0)


def _advice(rows: int) -> str:
    if rows > 1:
        return "give data and a loss that fit its outputs."
    return "layers that normalize over a batch need two rows in each: give more rows, or a batch_size of 2 or more."
