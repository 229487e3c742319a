"""Which weights of a network are masked."""

from collections.abc import Sequence

from torch import nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from choral.base.errors import InputError
from choral.base.interface import Called
from choral.base.text import fitting
from choral.masks.sampling import Unit

_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def prunable(
    network: nn.Module,
    *,
    unit: Unit = "connection",
    keep_classifier: bool = True,
    keep_first: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    calls: Sequence[Called] = (),
) -> list[str]:
    """Return the names of the weights to mask: those of convolutions and linear layers, without the classifier.

    Biases and normalization layers are not masked. The weights inside `nn.MultiheadAttention` and of recurrent layers are masked by connections
    only, as are transposed convolutions. Weights under a parametrization (weight_norm), `nn.Bilinear` and bare parameters are not masked
    unless `include` names them.

    Args:
        network: any network; it is not changed.
        unit: `connection`, `neuron` or `layer`.
        keep_classifier: leave out the last layer.
        keep_first: leave out the first layer.
        include: name patterns of further parameters to mask (a bias, a norm, the classifier).
        exclude: name patterns of parameters to leave out, with precedence. Frozen parameters are always left out.
        calls: the network's modules in order of execution (`choral.base.interface.executed`), to find the first and last; by default the
            order of declaration.

    >>> prunable(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    ['0.weight', '2.weight']
    """
    layers = _layers(network)
    called = [call for call in calls if call.layer in layers]
    order = [call.layer for call in called if call.needed] or list(layers)
    aside = {call.layer for call in called} - set(order)  # their outputs are not used
    suited = [name for name in layers if name not in aside and _fits(network, name, unit)]
    chosen = {weight for name in suited for weight in layers[name]}
    if keep_classifier and order:
        chosen -= set(layers[order[-1]])
    if keep_first and order:
        chosen -= set(layers[order[0]])
    parameters = [name for name, _ in network.named_parameters()]
    asked, left = set(fitting(parameters, include, "include")), set(fitting(parameters, exclude, "exclude"))
    rows = {weight for name, weights in layers.items() for weight in weights if _fits(network, name, "neuron")}
    if unit != "connection" and asked - rows:
        raise InputError(
            f"include: {sorted(asked - rows)[0]!r} has no neurons; unit='{unit}' takes convolutions and linear layers."
        )
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    return [name for name in parameters if name in (chosen | asked) - frozen - left]


def _layers(network: nn.Module) -> dict[str, list[str]]:
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    layers: dict[str, list[str]] = {}
    for name, module in network.named_modules():
        match module:
            case nn.MultiheadAttention():
                parts: tuple[str, ...] = _ATTENTION_WEIGHTS
            case nn.Linear() | _ConvNd():
                parts = ("weight",)
            case nn.RNNBase() | nn.RNNCellBase():
                parts = tuple(n for n, p in module.named_parameters(recurse=False) if p.dim() > 1)
            case _:
                continue
        own = dict(module.named_parameters(recurse=False))
        weights = [names[id(own[part])] for part in parts if part in own]
        if weights:
            layers[name] = weights
    return layers


def _fits(network: nn.Module, layer: str, unit: Unit) -> bool:
    if unit == "connection":
        return True
    module = network.get_submodule(layer)
    inside_attention = layer.endswith("out_proj") and isinstance(
        network.get_submodule(layer.rpartition(".")[0]), nn.MultiheadAttention
    )
    apart = (nn.MultiheadAttention, _ConvTransposeNd, nn.RNNBase, nn.RNNCellBase)
    return not isinstance(module, apart) and not inside_attention
