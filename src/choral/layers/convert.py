"""Replace layers in nested networks, and call a network with other tensors.

`swap` returns a new network and never changes the old one. It walks the module tree and calls a function that decides what to put in each
place, by kind, name or shape; `include` and `exclude` restrict the walk by name patterns.

`call_with` supports networks that have one layer or one weight under several names. torch.func.functional_call exchanges a tensor once for
each name, and the second exchange would keep the first one's tensor as the original. Here every tensor is exchanged once.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from choral.base import draws
from choral.base.errors import ConversionError
from choral.base.text import fitting, matches
from choral.layers.functional import WEIGHTED, Twin, filled, holding, numbers, same_results
from choral.layers.packed.layers import GroupedLinear


def copy_of(network: nn.Module, known: Mapping[int, Any] | None = None) -> Any:
    """Return a copy of a network; activations that it keeps as attributes lose their graph, which torch cannot copy.

    `known` has what stands for objects in the copy, by their ids.
    """

    def kept(value: Any) -> Iterator[Tensor]:
        match value:
            case Tensor(grad_fn=graph) if graph is not None:
                yield value
            case dict():
                yield from kept(list(value.values()))
            case list() | tuple():
                yield from itertools.chain.from_iterable(map(kept, value))

    activations = {id(t): t.detach().clone() for module in network.modules() for t in kept(vars(module))}
    return deepcopy(network, {**activations, **(known or {})})


def ties_of(network: nn.Module) -> dict[str, str]:
    """Return the further names of tensors with several names, and the first name of each.

    >>> one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> other.weight = one.weight
    >>> ties_of(nn.Sequential(one, other, one))
    {'1.weight': '0.weight'}
    """
    known: dict[int, str] = {}
    ties: dict[str, str] = {}
    for prefix, module in network.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            name = f"{prefix}.{key}" if prefix else key
            if tensor is not None and known.setdefault(id(tensor), name) != name:
                ties[name] = known[id(tensor)]
    return ties


def call_with(network: nn.Module, tensors: Mapping[str, Tensor], inputs: Any, ties: Mapping[str, str]) -> Any:
    """Return the output of a network with these tensors instead of its own; ties are from `ties_of`."""
    further = {name: tensors[known] for name, known in ties.items() if known in tensors}
    given = {**tensors, **further}
    outputs = functional_call(network, given, (inputs,), tie_weights=False)
    if network.training:
        _write_back(tensors, given)
    return outputs


def _write_back(tensors: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Write buffers that forward replaced, which functional_call returns in its dict, into the given ones."""
    for name, tensor in tensors.items():
        if now[name] is tensor:
            continue
        if now[name].shape != tensor.shape:
            raise RuntimeError(f"buffer {name!r} was {tuple(tensor.shape)} and becomes {tuple(now[name].shape)}")
        with torch.no_grad():
            tensor.copy_(now[name].detach())


Replace = Callable[[str, nn.Module], nn.Module | None]


def holds_frozen(layer: nn.Module) -> bool:
    """Return whether a layer has frozen parameters of its own (requires_grad=False).

    Conversions keep such layers as they are, the same for every member.
    """
    return any(not p.requires_grad for p in layer.parameters(recurse=False))


def tied_layers(network: nn.Module) -> dict[str, str]:
    """Return the layers that share a tensor with another layer, and that layer, by name.

    Conversions keep such layers as they are: separate weights in each place would make another kind of network.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> network[1].weight = network[0].weight
    >>> tied_layers(network)
    {'1': '0', '0': '1'}
    """
    found: dict[str, str] = {}
    for places in ties_of(network).items():
        one, other = (place.rpartition(".")[0] for place in places)
        found |= {one: other, other: one}
    return found


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def swap(
    network: nn.Module, replace: Replace, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> nn.Module:
    """Return a copy of the network with layers replaced by a function, `replace`.

    A replaced module is not entered. Modules and parameters that occur in two places of the network occur in the same two places of the copy,
    and a replacement gets the training or evaluation mode of the original. `nn.MultiheadAttention` reads the weights of its children without
    calling them, so it is passed to `replace` whole and never entered; `open_attention` turns it into separate layers first.

    Args:
        network: any module; the module itself may be replaced (its name is the empty string).
        replace: called as `replace(name, module)` with modules of the *copy*, outermost first, once for each distinct
            module; returns the replacement, which may take over the parameters of the module, or None to keep it.
        include: name patterns of modules that may be replaced; empty for all. A pattern without a match is an error.
        exclude: name patterns of modules to keep, with everything inside them.

    Example:
        >>> plain = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
        >>> wider = swap(plain, lambda name, layer: nn.GELU() if isinstance(layer, nn.ReLU) else None)
        >>> wider[1][0], plain[1][0]
        (GELU(approximate='none'), ReLU())
    """
    names = [name for name, _ in network.named_modules(remove_duplicate=False)]
    fitting(names, (*include, *exclude), f"layers of {type(network).__name__}")
    copy = copy_of(network)
    settled: dict[int, tuple[nn.Module, nn.Module]] = {}  # keeps the old module alive, so that its id stays its own

    def visit(name: str, module: nn.Module) -> nn.Module:
        if id(module) in settled:
            return settled[id(module)][1]
        if name and matches(name, exclude):
            settled[id(module)] = (module, module)
            return module
        allowed = not include or matches(name, include)
        chosen = replace(name, module) if allowed else None
        if chosen is not None:
            _refuse_hooks(name, module)
            chosen.train(module.training)
            settled[id(module)] = (module, chosen)
            return chosen
        settled[id(module)] = (module, module)
        if not isinstance(module, nn.MultiheadAttention):
            # the table of children is edited directly: a child's name need not be an attribute name, and a module
            # listed twice by its parent is listed once by named_children
            for child_name, child in list(module._modules.items()):
                if child is not None:
                    module._modules[child_name] = visit(f"{name}.{child_name}" if name else child_name, child)
        _leave_fast_path(module)
        return module

    return visit("", copy)


def convert(
    network: nn.Module, replace: Replace, who: object, *, include: Sequence[str] = (), exclude: Sequence[str] = ()
) -> nn.Module:
    """Return the result of `swap`, which keeps layers with frozen or tied parameters; ConversionError if nothing is replaced.

    Args:
        network, replace, include, exclude: as in `swap`.
        who: the structure that converts, for the message.
    """
    tied, found = tied_layers(network), False

    def asked(name: str, module: nn.Module) -> nn.Module | None:
        nonlocal found
        made = None if name in tied or holds_frozen(module) else replace(name, module)
        found = found or made is not None
        return made

    tree = swap(network, asked, include=include, exclude=exclude)
    if not found:
        raise ConversionError(
            f"{type(who).__name__} found no layer to convert in {type(network).__name__}: no linear map or convolution that trains, is not tied and fits include and exclude."
        )
    return tree


def plain_network(network: nn.Module) -> nn.Module:
    """Return a copy of a network with plain layers instead of converted ones."""
    return swap(network, lambda _, module: module.plain() if isinstance(module, Twin) else None)


def layers_of(network: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and module of each distinct layer of the given kinds, in order of registration.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> [name for name, _ in layers_of(network, (nn.Linear,))]
    ['0', '2']
    """
    return ((name, module) for name, module in network.named_modules() if isinstance(module, kinds))


def holds(network: nn.Module, *kinds: type) -> bool:
    """Return whether a network is, or contains, a layer of some kinds.

    >>> holds(nn.Sequential(nn.Linear(2, 2)), nn.Linear), holds(nn.ReLU(), nn.Linear)
    (True, False)
    """
    return any(layers_of(network, kinds))


CELLS = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
ENDS = (*WEIGHTED, GroupedLinear, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.MultiheadAttention, *CELLS)
"""Layers with inputs and outputs."""


def ends_of(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers with inputs and outputs, in order of registration, without those inside an attention, and last the one that gives the
    output in a dry run.

    >>> [name for name, _ in ends_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))]
    ['0', '2']
    """
    inside = [name + "." for name, _ in layers_of(network, (nn.MultiheadAttention,))]
    found = {n: m for n, m in layers_of(network, ENDS) if not n.startswith(tuple(inside))}
    return [(name, found[name]) for name in output_last(list(found))]


def within(name: str, patterns: Sequence[str]) -> bool:
    """Return whether the name of a layer, or of a module that contains it, matches one of the patterns.

    >>> within("layer1.0.conv1", ("layer1",)), within("layer10.conv1", ("layer1",))
    (True, False)
    """
    parts = name.split(".")
    return any(matches(".".join(parts[: i + 1]), patterns) for i in range(len(parts)))


def _leave_fast_path(module: nn.Module) -> None:
    """Make torch's transformer layers call their children in evaluation, instead of reading their weights."""
    match module:
        case nn.TransformerEncoderLayer():
            plain = (module.linear1, module.linear2, module.norm1, module.norm2, module.self_attn)
            kinds = (nn.Linear, nn.Linear, nn.LayerNorm, nn.LayerNorm, nn.MultiheadAttention)
            if any(type(child) is not kind for child, kind in zip(plain, kinds)):
                module.activation_relu_or_gelu = 0
        case nn.TransformerEncoder():
            called = [not getattr(layer, "activation_relu_or_gelu", 0) for layer in module.layers]
            module.use_nested_tensor = module.use_nested_tensor and not any(called)


def _refuse_hooks(name: str, module: nn.Module) -> None:
    """Raise for a layer whose hooks (old-style weight or spectral norm, a user's own) would be lost."""
    if any(getattr(module, table) for table in _HOOKS):
        raise ConversionError(
            f"layer {name!r} ({type(module).__name__}) has hooks, which would be lost; remove them, or keep the layer with exclude=({name!r},)."
        )


def first_layers(names: Sequence[str]) -> list[str]:
    """Return the layers that read the inputs: those found in a dry run, or the one declared first."""
    found = draws.now().ends[0]
    return [n for n in found if n in names] if found else list(names[:1])


def output_last(names: Sequence[str]) -> list[str]:
    """Return layers in the order of declaration, but the one that gives the output, if it is known, at the end.

    >>> with draws.under(ends=((), "head")):
    ...     output_last(["head", "body", "aside"])
    ['body', 'aside', 'head']
    """
    last = draws.now().ends[1]
    return [*(n for n in names if n != last), last] if last in names else list(names)


def linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with copies of a weight (output, input) and a bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


_HELD = "_linear_maps"  # where a network keeps the layers that were exchanged, such as transformers' `Conv1D` (GPT-2)


def as_linear(network: nn.Module) -> nn.Module:
    """Return the network with `nn.Linear` in place of other layers that compute a linear map; itself if there are none."""
    found = {
        name: turned for name, layer in network.named_modules() if name and (turned := _is_turned(layer)) is not None
    }
    found = {name: turned for name, turned in found.items() if name not in tied_layers(network)}
    if not found:
        return network
    held = {name: (holding(network.get_submodule(name), {}), turned) for name, turned in found.items()}

    def replace(name: str, layer: nn.Module) -> nn.Module | None:
        if name not in found:
            return None
        weight = layer.get_parameter("weight")
        return linear(weight.t() if found[name] else weight, layer._parameters.get("bias"))

    made = swap(network, replace)
    setattr(made, _HELD, held)
    return made


def put_back(network: nn.Module) -> nn.Module:
    """Return the network of one member with the layers that `as_linear` replaced, holding the weights of their replacements."""
    held: dict[str, tuple[nn.Module, bool]] = getattr(network, _HELD, {})

    def replace(name: str, layer: nn.Module) -> nn.Module | None:
        if name not in held or not isinstance(layer, nn.Linear):
            return None
        empty, turned = held[name]
        weight = layer.weight.t().contiguous() if turned else layer.weight
        tensors = {"weight": nn.Parameter(weight.detach(), layer.weight.requires_grad), "bias": layer.bias}
        return filled(empty, {n: t for n, t in tensors.items() if n in empty._parameters})

    return swap(network, replace) if held else network


def _is_turned(layer: nn.Module) -> bool | None:
    """Return whether the weight of a linear map is (input, output) instead of (output, input); None if the layer is no linear map.

    It may have a weight and a bias only, and is tested with values that identify their places.
    """
    own = {n: p for n, p in layer._parameters.items() if p is not None}
    weight, bias = own.get("weight"), own.get("bias")
    if type(layer).__module__.startswith("torch.") or layer._modules or layer._buffers or isinstance(layer, nn.Linear):
        return None
    if weight is None or weight.dim() != 2 or weight.is_meta or len(own) != 1 + (bias is not None):
        return None
    given = {n: numbers(p.shape, p) for n, p in own.items()}
    tried = filled(layer, given)
    for turned in (True, False):
        wanted = given["weight"].t() if turned else given["weight"]
        if bias is None or bias.shape == wanted.shape[:1]:
            x = numbers((2, 3, wanted.shape[1]), weight)
            right = F.linear(x, wanted, given.get("bias"))
            if same_results(tried, x, lambda *_, y=right: y, exact=False):
                return turned
    return None
