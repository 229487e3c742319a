"""Swap layers in any nested network, and call a network with other tensors.

`swap` returns a new network, the old one is never touched. It walks the module tree and asks one function what to put in each place. Whatever the function decides by - kind,
name, shape - is its own business; `include` and `exclude` restrict the walk to names that fit shell-style patterns.

`call_with` also serves networks that have one layer or one weight under several names: torch.func.functional_call exchanges a tensor once for each of its names. For a layer of two names both are the same place, and
the second exchange keeps the first one's tensor as what is to be put back. Here every place is exchanged once.
"""

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
from choral.layers.functional import WEIGHTED, Twin, emptied, filled, numbers, same_results
from choral.layers.packed.layers import GroupedLinear


def ties_of(network: nn.Module) -> dict[str, str]:
    """Return the further places of tensors that several layers hold: the name of each, and the name it is known by.

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
    """Return what a network returns with these tensors in the place of its own; ties are what `ties_of` found in it."""
    further = {name: tensors[known] for name, known in ties.items() if known in tensors}
    given = {**tensors, **further}
    outputs = functional_call(network, given, (inputs,), tie_weights=False)
    if network.training:
        _write_back(tensors, given)
    return outputs


def _write_back(tensors: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Write buffers that forward gave anew, which functional_call notes in its dict, into those that it was called with."""
    for name, tensor in tensors.items():
        if now[name] is tensor:
            continue
        if now[name].shape != tensor.shape:
            raise RuntimeError(f"buffer {name!r} was {tuple(tensor.shape)} and becomes {tuple(now[name].shape)}")
        with torch.no_grad():
            tensor.copy_(now[name].detach())


Replace = Callable[[str, nn.Module], nn.Module | None]


def holds_frozen(layer: nn.Module) -> bool:
    """Return whether a layer has parameters of its own that are not to be trained (requires_grad=False).

    Conversions leave such layers as they are: what is frozen stays the same numbers for every member.
    """
    return any(not p.requires_grad for p in layer.parameters(recurse=False))


def tied_layers(network: nn.Module) -> dict[str, str]:
    """Return the layers that hold a tensor together with another layer, and that other layer, by name.

    Conversions leave such layers as they are: with weights of its own in each place a member would be another kind of network.

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
    """Return a copy of the network in which `replace` has chosen what stands in each place.

    A module that is swapped is not entered: its replacement answers for everything inside it. Modules and parameters
    that stand in two places of the network stand in the same two places of the copy, and a replacement takes
    over the training or evaluation mode of what it replaces. `nn.MultiheadAttention` reads the weights of its own
    children without calling them, so it is offered to `replace` whole and never entered; `open_attention` turns it
    into separate layers first.

    Args:
        network: any module; the module itself may be swapped (its name is the empty string).
        replace: called as `replace(name, module)` with modules of the *copy*, outermost first, once for each distinct
            module; returns the replacement, which may take over the parameters of the module, or None to leave it.
        include: patterns of the names that may be swapped; all when empty. A pattern that fits nothing is an error.
        exclude: patterns of the names that stay, with everything inside them.

    Example:
        >>> plain = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)))
        >>> wider = swap(plain, lambda name, layer: nn.GELU() if isinstance(layer, nn.ReLU) else None)
        >>> wider[1][0], plain[1][0]
        (GELU(approximate='none'), ReLU())
    """
    names = [name for name, _ in network.named_modules(remove_duplicate=False)]
    fitting(names, (*include, *exclude), f"layers of {type(network).__name__}")
    copy = deepcopy(network)
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
    """Return what `swap` does, which leaves layers with frozen or tied parameters alone; ConversionError if it swaps nothing.

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
    """Return a copy of a network with plain layers in the places of their twins."""
    return swap(network, lambda _, module: module.plain() if isinstance(module, Twin) else None)


def layers_of(network: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name and module of each distinct layer of the given kinds, in the order in which they were registered.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    >>> [name for name, _ in layers_of(network, (nn.Linear,))]
    ['0', '2']
    """
    return ((name, module) for name, module in network.named_modules() if isinstance(module, kinds))


def holds(network: nn.Module, *kinds: type) -> bool:
    """Return whether a network is, or has, a layer of one of some kinds.

    >>> holds(nn.Sequential(nn.Linear(2, 2)), nn.Linear), holds(nn.ReLU(), nn.Linear)
    (True, False)
    """
    return any(layers_of(network, kinds))


CELLS = (nn.RNNCell, nn.LSTMCell, nn.GRUCell)
ENDS = (*WEIGHTED, GroupedLinear, nn.Embedding, nn.EmbeddingBag, nn.RNNBase, nn.MultiheadAttention, *CELLS)
"""Layers with inputs and outputs."""


def ends_of(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers with inputs and outputs, in the order of registration, without those inside an attention; at the end the one
    that gives the output, where a dry run showed that another is registered last.

    >>> [name for name, _ in ends_of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))]
    ['0', '2']
    """
    inside = [name + "." for name, _ in layers_of(network, (nn.MultiheadAttention,))]
    found = {n: m for n, m in layers_of(network, ENDS) if not n.startswith(tuple(inside))}
    return [(name, found[name]) for name in output_last(list(found))]


def within(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a layer, or a module that holds it, fits one of the patterns.

    >>> within("layer1.0.conv1", ("layer1",)), within("layer10.conv1", ("layer1",))
    (True, False)
    """
    parts = name.split(".")
    return any(matches(".".join(parts[: i + 1]), patterns) for i in range(len(parts)))


def _leave_fast_path(module: nn.Module) -> None:
    """Make torch's transformer layers call their children: in evaluation they would read the children's weights instead."""
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
    """Raise for a layer whose hooks (old-style weight or spectral norm, a user's own) would be lost in a swap."""
    if any(getattr(module, table) for table in _HOOKS):
        raise ConversionError(
            f"layer {name!r} ({type(module).__name__}) carries hooks, which would be lost; remove them, or keep the layer with exclude=({name!r},)."
        )


def first_layers(names: Sequence[str]) -> list[str]:
    """Return the layers that read the inputs: those that a dry run found, none perhaps, or the one that is declared first."""
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
    """Return the network with `nn.Linear` in the place of other layers that compute a linear map; itself if there are none."""
    found = {
        name: turned for name, layer in network.named_modules() if name and (turned := _is_turned(layer)) is not None
    }
    found = {name: turned for name, turned in found.items() if name not in tied_layers(network)}
    if not found:
        return network
    held = {name: (emptied(network.get_submodule(name)), turned) for name, turned in found.items()}

    def replace(name: str, layer: nn.Module) -> nn.Module | None:
        if name not in found:
            return None
        weight = layer.get_parameter("weight")
        return linear(weight.t() if found[name] else weight, layer._parameters.get("bias"))

    made = swap(network, replace)
    setattr(made, _HELD, held)
    return made


def put_back(network: nn.Module) -> nn.Module:
    """Return the network of one member with the layers that `as_linear` exchanged, holding the weights of those in their places."""
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
    """Return whether a layer computes a linear map with the weight (input, output), or (output, input); None if it does not.

    It may hold a weight and a bias alone, and is tried with numbers in them that tell their places apart.
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
