"""Inspect a network before a run: raise errors or warn about what would otherwise give wrong members silently.

The plain network runs once in evaluation mode, with its calls and its autograd graph recorded. The joint network runs once in training mode,
forward and backward, on at most four rows. The last member of a shared network is compared with the same member alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

from choral.base import batches, rng
from choral.base.batches import Batch
from choral.base.errors import ChoralError, ConversionError, InputError, explained, first_line, warn
from choral.base.interface import Called, Interface, described, evaluating, is_lazy, pick, why_not_read
from choral.base.rng import DispatchMode, global_states, moved
from choral.base.types import Build
from choral.base.values import Function, attributes
from choral.data.inputs import Transforms, checked_transforms, prepare
from choral.data.sources import Source
from choral.engine.blueprint import Blueprint, bare, floats_of
from choral.layers.bayesian.sampling import at_means
from choral.layers.convert import copy_of, ends_of, holds
from choral.layers.joint.network import Joint, channels_last
from choral.layers.keyed import keyed
from choral.plan.walk import Visitor, walk
from choral.recipes.recipe import Recipe
from choral.structures.base import Structure
from choral.structures.independence import refuse_mixed, stacked_of, why_not_run

_Loss = Callable[[Callable[[Batch], Any]], Tensor]
_RESHAPES = ("View", "Squeeze", "Unsqueeze", "Reshape", "UnsafeView")
_TYPES = ("to", "type_as", "__get__", "detach")  # which read no numbers of a weight, or none that are trained


class Calls:
    """Records the calls of a network's modules within its block; `of` judges them by the autograd graph of the output.

    Args:
        network: any network, in the mode it is to run in.
        layers: names of the layers whose outputs are no longer inputs; frozen parameters require gradients within the block then. None keeps no graph.

    Attributes:
        stack: the modules being run, innermost last; after an error, those it came from.
        called: the names of all that ran, in the order of their first calls, and whether what they read requires a gradient.
    """

    def __init__(self, network: nn.Module, layers: Sequence[str] | None = None):
        self._names = {module: name for name, module in network.named_modules()}
        self._layers = None if layers is None else [network.get_submodule(name) for name in layers]
        self._frozen = [] if layers is None else [p for p in network.parameters() if not p.requires_grad]
        self._made: list[tuple[nn.Module, list[Node], list[Node]]] = []  # the nodes of what it read and gave
        self.stack: list[nn.Module] = []
        self.called: dict[str, bool] = {}

    def __enter__(self) -> Self:
        for p in self._frozen:
            p.requires_grad_(p.is_floating_point())
        self._hooks = [m.register_forward_pre_hook(self._enter, with_kwargs=True) for m in self._names]
        self._hooks += [m.register_forward_hook(self._leave, with_kwargs=True) for m in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for p in self._frozen:
            p.requires_grad_(False)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stack.append(module)
        given = (*args, *kwargs.values())
        self.called[self._names[module]] = any(isinstance(t, Tensor) and t.requires_grad for t in given)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        self.stack.pop()
        if self._layers is not None:
            given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
            self._made.append((module, list(_nodes(given)), list(_nodes(found))))

    @property
    def name(self) -> str:
        """The name of the innermost module being run."""
        return self._names[self.stack[-1]]

    @property
    def where(self) -> str:
        """The innermost module being run, with its kind; nothing if there is none."""
        return f"{self.name!r} ({type(self.stack[-1]).__name__})" if self.stack else ""

    def of(self, output: Any) -> list[Called]:
        """Return the calls in order; calls of unknown necessity count as necessary."""
        layers = self._layers or ()
        own = {m for m in self._names if m in layers or not type(m).__module__.startswith("torch.")}
        bare = {id(p) for m in own for p in m.parameters(recurse=m in layers)}
        needed = _ancestors(_nodes(output)) if isinstance(output, Tensor) and output.requires_grad else None
        return [
            Called(
                layer=self._names[module],
                needed=needed is None or not found or not needed.keys().isdisjoint(found),
                reads_input=bare.isdisjoint(map(id, _leaves(given))),
            )
            for module, given, found in self._made
        ]


def executed(network: nn.Module, example: Any) -> list[Called]:
    """Return the calls of modules in a pass in evaluation mode, in their order; a tuple as example holds several arguments."""
    with evaluating(network), Calls(network, ()) as calls, torch.enable_grad(), keyed(0):
        output = network(*(example if isinstance(example, tuple) else (example,)))
    return calls.of(output)


def parameters_of(*outputs: Tensor) -> list[Tensor]:
    """Return the leaves of the graph that outputs depend on: parameters, and inputs that require a gradient."""
    return _leaves(_nodes(outputs))


def _leaves(nodes: Iterable[Node]) -> list[Tensor]:
    return [node.variable for node in _ancestors(nodes) if hasattr(node, "variable")]


def _nodes(value: Any) -> Iterator[Node]:
    """Yield the nodes of tensors, and of those they are views of: writing into a view gives it another node."""
    if isinstance(value, Tensor) and value.requires_grad:
        yield get_gradient_edge(value).node
        if value._is_view() and value._base is not None and value._base.requires_grad:
            yield get_gradient_edge(value._base).node
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _nodes(part)


def _ancestors(nodes: Iterable[Node]) -> dict[Node, None]:
    """Return nodes of a graph and all that they were computed from."""
    found = dict.fromkeys(nodes)
    stack = list(found)
    while stack:
        new = [node for node, _ in stack.pop().next_functions if node is not None and node not in found]
        found.update(dict.fromkeys(new))
        stack += new
    return found


class Counting(DispatchMode):
    """Counts floating-point operations of this thread: in all, and of each module named by `calls` without the modules within it."""

    def __init__(self, calls: Calls | None = None, formulas: Mapping[Any, Any] | None = None):
        super().__init__()
        self._calls, self._formulas = calls, flop_registry | dict(formulas or {})
        self.total, self.modules = 0.0, dict[str, Counter[Any]]()

    def dispatch(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Count an operation."""
        made = func(*args, **kwargs)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            with suppress(AssertionError, IndexError, TypeError, ValueError):  # shapes a formula is not made for
                count = formula(*args, **kwargs, out_val=made)
                self.total += count
                if self._calls is not None and self._calls.stack:
                    self.modules.setdefault(self._calls.name, Counter())[func._overloadpacket] += count
        return made


def operations(network: nn.Module, counted: Counting, rows: int) -> float:
    """Return the floating-point operations of one row in a forward pass: every weight is used once (recurrent layers), or as torch counts."""
    return max(counted.total / max(rows, 1), 2.0 * sum(p.numel() for p in network.parameters()))


@dataclass(frozen=True)
class Plain:
    """Results of the pass of the plain network."""

    network: nn.Module | None  # as it was built; None if inputs decide its sizes
    interface: Interface  # how the network is called, and which of its outputs counts
    transforms: Transforms  # of input batches, checked
    floats: torch.dtype  # in which it reads real numbers
    device: torch.device
    shape: tuple[int, ...]  # of the output of one point
    calls: tuple[Called, ...]  # of its modules, in their order; none where gradients could not be followed
    needed: frozenset[str]  # the parameters that the output depends on
    ending: str  # the kind of the operation that gave the output, but for its shape

    def ready(self, x: Batch) -> Batch:
        """Return a batch as the plain network reads it."""
        return prepare(batches.moved(x, self.device), self.transforms, training=False, floats=self.floats)


@dataclass(frozen=True)
class Findings:
    """Results of the inspection that a run keeps."""

    calls: tuple[Called, ...] = ()  # of the modules of the plain network
    operations: float = 0.0  # floating-point operations of one row in a forward pass of the joint network
    remembers: str | None = None  # a tensor attribute that the network changes in training, which no stack can carry
    doubts: tuple[str, ...] = ()  # warnings to be given
    lends: bool = True  # whether the network, or a transform, may draw by functions of torch that are not caught


def inspect_plain(
    build: Build | nn.Module, source: Source, structure: Structure, *, inputs: Any, output: Any, device: torch.device
) -> Plain:
    """Build the plain network and run it on the first rows; the source uses its dtype for real numbers from now on."""
    with rng.seeded(0, "look"):
        with rng.elsewhere(rng.key(0, "look")):
            network = bare(build)
        built = None if is_lazy(network) else copy_of(network)  # a call may leave something behind
        network = nn.Module.to(network, device)  # a network may have a `to` of its own
        _refuse_modules(network, structure)
        floats = floats_of(network)
        source.settle(floats)
        x, y = source.example()
        transforms = checked_transforms(inputs, x)
        batch = prepare(batches.moved(x, device), transforms, training=False, floats=floats)
        reads = Interface(
            spread=not isinstance(batch, Tensor),
            output=Function.of(output) if callable(output) else output,
            reads=batches.described(batch),
            columns=source.columns,
            target=tuple(y.shape[1:]),
            scale=_scale(x),
        )
        if isinstance(x, Tensor) and x.dtype == torch.uint8 and x.dim() == 2 and holds(network, nn.Embedding):
            said = "x holds bytes (uint8) and the network an embedding; bytes are divided by 255, as those of images"
            warn(f"{said}: give tokens as x.long().")
        with keyed(0):
            reads, found, calls, wrote = _called(network, reads, batch)
    if structure.members > 1 and wrote:
        said = f"the network writes into its input, which {structure.members} members share"
        raise InputError(f"{said}; let forward begin with x = x.clone().")
    outputs = pick(found, reads.output)
    if not outputs.dim() or len(outputs) != batches.rows(batch):
        said = f"the network gave outputs of shape {tuple(outputs.shape)} for {batches.rows(batch)} points"
        raise InputError(f"{said}; make it return (batch, outputs).")
    interface = replace(reads, column=outputs.dim() == 1)
    names = {id(p): name for name, p in network.named_parameters()}
    used = parameters_of(outputs)
    if any(isinstance(p, nn.Parameter) and id(p) not in names for p in used):
        said = "build: forward uses layers that are kept in a list, a dict or another object, where torch does not see them"
        said = f"{said}, so they would not be trained, copied or saved"
        raise InputError(f"{said}; keep them in an nn.ModuleList or nn.ModuleDict.")
    made = tuple(calls.of(outputs)) if outputs.requires_grad else ()
    shape = tuple(interface.picked(found).shape[1:])
    needed = frozenset(names[id(p)] for p in used if id(p) in names)
    interface = _with_ends(network, interface, made)
    node = outputs.grad_fn
    while node is not None and type(node).__name__.startswith(_RESHAPES):
        node = node.next_functions[0][0]
    ending = type(node).__name__.removesuffix("Backward0")
    return Plain(built, interface, transforms, floats, device, shape, made, needed, ending)


def _called(network: nn.Module, reads: Interface, batch: Batch) -> tuple[Interface, Any, Calls, bool]:
    """Return how a network is called (images in memory order if it cannot read channels last), what it returns, its calls, whether it writes into its input."""
    images = any(t.dim() == 4 for t in batches.leaves(batch))
    layouts = [reads, replace(reads, avoids=("channels_last",))] if images else [reads]
    failed: Exception | None = None
    for gradients in (True, False):
        for way in layouts:
            given = batches.mapped(batches.in_order if way.avoids else torch.clone, batches.mapped(torch.clone, batch))
            try:
                if is_lazy(network):
                    with evaluating(network), torch.no_grad():
                        way.called(network, batches.mapped(torch.clone, given))
                if images and not way.avoids:
                    channels_last(network)
                elif images:
                    for t in (*network.parameters(), *network.buffers()):
                        t.data = batches.in_order(t.data)
                calls = Calls(network, [name for name, _ in ends_of(network)])
                with evaluating(network), torch.set_grad_enabled(gradients), calls:
                    return way, way.called(network, given), calls, not batches.equal(batch, given)
            except ChoralError:
                raise
            except Exception as error:  # forward code of the user's may fail in any way
                failed = failed or error
    assert failed is not None
    raise InputError(why_not_read(network, batch, failed)) from failed


def _scale(x: Any) -> str:
    if not isinstance(x, Tensor) or not x.numel():
        return ""
    if x.dtype == torch.uint8:
        return "bytes"
    return "" if not x.is_floating_point() else "unit" if float(x.min()) >= 0 and float(x.max()) <= 1 else "free"


def _refuse_modules(network: nn.Module, structure: Structure) -> None:
    """Raise for modules that copies, saved members or conversions would change."""
    for name, module in network.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            said = f"module {name!r} ({type(module).__name__}) keeps state of its own (get_extra_state), which is not saved"
            raise InputError(f"{said}; register it as a buffer.")
        if structure.converts and isinstance(module, nn.SyncBatchNorm):
            said = f"layer {name!r} (SyncBatchNorm) would mix the statistics of members"
            raise ConversionError(f"{said}; use nn.BatchNorm2d with Compute(data_parallel=True).")
        forward = vars(module).get("forward")
        if forward is not None and getattr(forward, "__self__", None) is not module:
            _refuse_remembered(f"the forward of module {name!r}")


def _refuse_remembered(what: str) -> NoReturn:
    said = f"build: {what} was replaced by a function, or calls one, that remembers the network it was made for"
    why = "so that a copy, as members are, does not compute with its own parameters"
    raise InputError(f"{said}, {why}; write it as a method of the module's class.")


def _with_ends(network: nn.Module, interface: Interface, calls: Sequence[Called]) -> Interface:
    """Return the interface with the layers that read a network's inputs and give its output, where others are declared first and last."""
    names = [name for name, _ in ends_of(network)]
    needed = [call for call in calls if call.needed and call.layer in names]
    if len(names) < 2 or not calls:
        return interface
    first = tuple(dict.fromkeys(call.layer for call in needed if call.reads_input)) or ("",)
    return replace(
        interface,
        first=first if needed and first != (names[0],) else (),
        last=needed[-1].layer if needed and needed[-1].layer != names[-1] else "",
    )


class _Reads(TorchFunctionMode):
    """Records layers whose weights are used while neither the layer nor another module of choral runs."""

    def __init__(self, layers: dict[str, nn.Module], running: Calls):
        super().__init__()
        self._owners = {id(p): (name, layer) for name, layer in layers.items() for p in layer.parameters()}
        self._stack, self.found = running.stack, set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outside = bool(self._stack) and not _is_ours(self._stack[-1])
        if outside and isinstance(result, Tensor) and getattr(func, "__name__", "") not in _TYPES:
            read = [self._owners[id(a)] for a in args if id(a) in self._owners]
            self.found |= {name for name, layer in read if layer not in self._stack}
        return result


def _is_ours(module: nn.Module) -> bool:
    return type(module).__module__.startswith("choral.layers.")


def inspect_training(
    network: nn.Module, structure: Structure, plain: Plain, loss: _Loss, *, rows: int, link: str
) -> Findings:
    """Run a copy of the joint network on this many first rows as in training; raise what would fail or silently train something else."""
    trial = _Trial(network, structure, loss, training=rows > 0)
    generators, held = global_states(), attributes(trial.network)
    buffers = {n: b.clone() for n, b in trial.network.named_buffers()}
    try:
        value = trial.call()
        _refuse_past(trial, plain)
        if trial.joint is not None:
            refuse_mixed(trial.joint, structure.unfold(trial.outputs), trial.inputs, list(trial.running.called))
        if rows:
            named = {id(p) for name, p in trial.network.named_parameters() if name in trial.trained}
            if named.isdisjoint(map(id, parameters_of(value))):
                advice = "leave out detach, item, numpy and no_grad in forward and loss, or free a layer"
                said = "the loss depends on no parameter, or no parameter of the network is to be trained"
                raise InputError(f"{said} (all are frozen); {advice}.")
            with rng.seeded(0, "backward") as again:
                value.sum().backward()
            if again:
                _refuse_recomputation()
    except ChoralError:
        raise
    except Exception as error:  # code of the user's may fail in any way
        if not trial.network.training:  # it need not run under gradients
            return Findings(plain.calls)
        raise _why_not_trained(trial, error, rows) from error
    of_row = operations(network, trial.counted, rows)
    if not rows:
        return Findings(plain.calls, of_row)
    remembers, attribute = _changed(trial, held, buffers, value)
    drawn = moved(generators, ("numpy", "random"))
    doubts = [
        f"the network draws from {'numpy.random' if name == 'numpy' else 'the module random'} when it is called, so two runs, and a resumed "
        "one, will differ; draw with torch instead."
        for name in sorted(drawn)
    ]
    if link and plain.ending == link:
        name = link.lower()
        said = f"the network ends with {name}, and its outputs are read as logits, which go through {name} once more"
        doubts.append(f"{said}; leave the last {name} out.")
    if attribute:
        doubts.append(f"{attribute}; checkpoints do not keep it, so resumed runs may differ: make it a buffer.")
    return Findings(plain.calls, of_row, remembers, tuple(doubts), trial.lends)


class _Trial:
    """A copy of a joint network, and the results of its last call."""

    def __init__(self, network: nn.Module, structure: Structure, loss: _Loss, *, training: bool):
        self.network, self.structure, self._loss = copy_of(network), structure, loss
        self.joint = self.network if isinstance(self.network, Joint) else None
        self.network.train(training or self.joint is not None)
        self.trained = {name for name, p in network.named_parameters() if p.requires_grad}
        self.layers = {n: m for n, m in self.network.named_modules() if n and structure.converts and _is_ours(m)}
        self.inputs: list[Tensor] = []  # what members read, where each has inputs of its own
        self.outputs: Any = None
        self.past = set[str]()  # layers whose weights were read past their call
        self._hooks: list[RemovableHandle] = []
        if self.joint is not None:
            stacked_of(self.joint)

    def call(self) -> Tensor:
        """Return the loss of the first rows; the same draws in every call. No module may run again in the backward pass."""
        for hook in self._hooks:
            hook.remove()
        self.running = Calls(self.network)
        reads = _Reads(self.layers, self.running)
        seeded = rng.seeded(0, "try")
        with torch.enable_grad(), seeded as lent, keyed(0), Counting() as counted, self.running, reads:
            value = self._loss(self._run)
        self._hooks = [module.register_forward_pre_hook(_refuse_recomputation) for module in self.network.modules()]
        self.past, self.counted, self.lends = reads.found, counted, bool(lent)
        return value

    def _run(self, ready: Batch) -> Any:
        if self.joint is not None and self.joint.own_inputs:
            ready = batches.mapped(lambda t: t.clone().requires_grad_(t.is_floating_point()), ready)
            self.inputs = [leaf for leaf in batches.leaves(ready) if leaf.requires_grad]
        self.outputs = self.network(ready)
        return self.outputs


def _refuse_recomputation(*_: Any) -> NoReturn:
    said = "the network computes parts of itself again in the backward pass (torch.utils.checkpoint), where draws and weights of members are others"
    advice = "build it without activation checkpointing (for transformers: gradient_checkpointing_disable())"
    raise InputError(f"{said}; {advice}, and give a smaller batch_size.")


def _refuse_past(trial: _Trial, plain: Plain) -> None:
    """Raise for a copy that uses parameters of another network, and for converted layers whose weights are read outside of their call."""
    own = {id(p): name for name, p in trial.network.named_parameters()}
    leaves = parameters_of(trial.outputs)
    strange = any(isinstance(p, nn.Parameter) and id(p) not in own for p in leaves)
    used = {own[id(p)] for p in leaves if id(p) in own}
    within, kind = "network." if _is_ours(trial.network) else "", type(trial.structure).__name__
    running = [name for name in trial.layers if name in trial.running.called]
    for name in trial.layers:
        short = name.removeprefix(within)
        idle = name not in running and not any(name.startswith(f"{other}.") for other in running)
        elsewhere = used if not strange else used | {within + p for p in plain.needed}
        if name in trial.past or (idle and any(p.startswith(f"{name}.") for p in elsewhere)):
            said = f"layer {short!r} is converted for {kind}, but the network reads its weights past its call"
            advice = f"let forward use self.{short}(...) alone, or use another method"
            raise ConversionError(f"{said} (by torch.nn.functional, say); {advice}.")
    stale = [n.removeprefix(within) for n in trial.trained - used if n.removeprefix(within) in plain.needed]
    if strange and stale and trial.layers:
        held = "a list, dict or other object"
        said = f"parameter {min(stale)!r} is converted for {kind}, but forward reads it from {held}"
        raise ConversionError(f"{said}; let forward read it from the module that it is registered in.")
    if strange:
        _refuse_remembered("its forward")


def _why_not_trained(trial: _Trial, error: Exception, rows: int) -> ChoralError:
    if trial.outputs is not None and not isinstance(trial.outputs, Tensor):
        said = f"the network returns {described(trial.outputs)} in training mode, but a tensor in evaluation mode"
        return InputError(f"{said}; give fit(..., output=function) for both.")
    if rows != 1 and trial.outputs is None and trial.joint is not None:
        return why_not_run(trial.joint, error)
    if rows != 1 and trial.outputs is None and trial.structure.converts:
        return _why_not_converted(trial.structure, trial.running, error)
    advice = "give data and a loss that fit its outputs"
    if rows == 1:
        advice = "normalization over a batch needs two rows in each"
    return InputError(f"the network cannot be trained on a batch of {rows} row(s): '{first_line(error)}'; {advice}.")


def _why_not_converted(structure: Structure, running: Calls, error: Exception) -> ConversionError:
    said = f"the plain network reads these data, but not as {type(structure).__name__} converts it"
    return ConversionError(f"{said}: {running.where or 'its output'} gives '{first_line(error)}'; use another method.")


def _changed(
    trial: _Trial, held: tuple[dict[str, str], dict[str, Tensor]], buffers: dict[str, Tensor], loss: Tensor
) -> tuple[str | None, str]:
    """Return the tensor attribute that carries something from call to call (the same after an equal call is only left behind), and what changed, in words."""
    (before, tensors), (plainly, after) = held, attributes(trial.network)
    changed = [n for n in after if n not in tensors or not _is_same(tensors[n], after[n])]
    remembers = None
    if changed:
        with torch.no_grad():
            for name, b in trial.network.named_buffers():
                if name in buffers and b.shape == buffers[name].shape:
                    b.copy_(buffers[name])
        again, (_, last) = trial.call(), attributes(trial.network)
        moving = [n for n in changed if n not in last or not _is_same(after[n], last[n])]
        remembers = next(iter(moving), None) if _is_same(loss.detach(), again.detach()) else (moving or changed)[0]
    name = remembers or next((n for n in plainly if plainly[n] != before.get(n)), "")
    how = "a tensor" if remembers else f"{before.get(name, 'absent')} became {plainly.get(name)}"
    return remembers, f"the attribute {name!r} of the network changes when it is called ({how})" if name else ""


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
        return torch.equal(one, other)
    return torch.allclose(one, other, equal_nan=True)


def check_alone(network: nn.Module, structure: Structure, x: Batch) -> None:
    """Raise ConversionError if the last member computes something else alone than within the joint network, on a few rows."""
    running, rows = Calls(network), batches.rows(x)
    why = partial(_why_not_converted, structure, running)
    with explained(why), torch.no_grad(), rng.seeded(0, "look"), keyed(0), at_means(), running:
        outputs = structure.unfold(network(structure.feed(x, None)[0]))
    if outputs.shape[:2] != (structure.members, rows):
        said = f"the network gave outputs of shape {tuple(outputs.shape)}; the first axes must be (member, batch)"
        raise InputError(f"{said} = ({structure.members}, {rows}); make the network return (batch, outputs).")
    last = structure.members - 1
    with torch.no_grad(), rng.seeded(0, "look"), keyed(0):
        alone = structure.member(network, last).eval()(x)
    near = torch.finfo(alone.dtype).eps ** 0.5 * float(alone.abs().nan_to_num(0, 0, 0).amax())
    if not torch.allclose(alone, outputs[last], rtol=0, atol=near, equal_nan=True):
        said = f"member {last} of {type(structure).__name__} alone is another network than within the joint one"
        said = f"{said}, since forward moves the first two axes of its input before the first layer"
        raise ConversionError(f"{said}; use a method whose members are networks of their own.")


def left_plain(network: nn.Module, structure: Structure) -> list[str]:
    """Return the layers, with their kinds, that a structure for all layers did not convert."""
    within = "network." if _is_ours(network) else ""
    converted = [name for name, module in network.named_modules() if _is_ours(module)]
    ours = tuple(f"{name}." for name in converted if name not in ("", within[:-1]))
    found: dict[str, str] = {}
    for name, p in network.named_parameters() if structure.converts_all else ():
        layer = name.rpartition(".")[0].partition(".parametrizations")[0]
        if p.dim() > 1 and p.requires_grad and not name.startswith(ours):
            found[layer.removeprefix(within)] = type(network.get_submodule(layer)).__name__
    return [f"{layer!r} ({kind})" if layer else f"parameters of {kind}" for layer, kind in found.items()]


def lost_weights(blueprint: Blueprint, recipe: Recipe) -> str:
    """Return a warning if the user gave trained weights that the recipe does not use; empty if not."""
    structure, taken = blueprint.structure, list[bool]()
    walk(recipe.plan, None, Visitor(start=lambda phase, _, __: taken.append(phase.takes_given)))
    resized = structure.draws_anew
    if len(taken) > 1 and not any(taken) and blueprint.parent is None and blueprint.share_alike == 1.0:
        alike = f"the {len(taken)} members of '{recipe.name}' start alike"
        return f"build returns the same weights at every call, so {alike}; let it make a new network at each call (build=Net, not lambda: net), unless these weights are trained."
    redrawn = blueprint.parent is not None and not any(taken) and structure.keeping() == structure
    loaded = blueprint.parent is None and resized and blueprint.brings_weights
    if not loaded and not ((redrawn or resized) and blueprint.has_learned):
        return ""
    advice = (
        ", since members have layers of other sizes; use a method that keeps whole layers, such as batch_ensemble"
        if resized
        else "; use pretrained=True or parent_epochs=0, where there is one, or give a function that builds the network"
    )
    return f"the network handed over has weights of its own, but '{recipe.name}' draws its weights anew{advice}."
