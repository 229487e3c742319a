"""Networks, and the registry by which saved ensembles rebuild them.

Weights are drawn from torch's global generator: two builds under the same `torch.manual_seed` are equal.
"""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from choral.base.errors import InputError, did_you_mean
from choral.models.convnets import lenet
from choral.models.mlp import mlp
from choral.models.resnet import resnet18, resnet20_frn, resnet50, resnet_cifar, resnext50, wide_resnet
from choral.models.spec import spec_of, zoo
from choral.models.tabular import tabular
from choral.models.transformer import transformer, vit

_BUILDERS = (
    *(mlp, tabular, lenet, resnet_cifar, resnet20_frn, resnet18, resnet50, resnext50, wide_resnet),
    *(vit, transformer),
)
MODELS: dict[str, Callable[..., nn.Module]] = {build.__name__: build for build in _BUILDERS}

__all__ = [
    "MODELS", "lenet", "mlp", "rebuild", "resnet18", "resnet20_frn", "resnet50", "resnet_cifar", "resnext50",
    "spec_of", "tabular", "transformer", "vit", "wide_resnet", "zoo",
]  # fmt: skip


def rebuild(spec: Mapping[str, Any]) -> nn.Module:
    """Return a new network from a description by `spec_of`: same names and shapes, newly drawn weights.

    Only builders in `MODELS` are called and nothing is imported, so a description may come from a file. To add a network of your own,
    decorate its builder with `@zoo` and add it to `MODELS` under its name.

    >>> spec_of(rebuild({"name": "mlp", "arguments": {"inputs": 8, "outputs": 1, "hidden": [50, 50]}}))["name"]
    'mlp'
    """
    match spec:
        case {"name": str() as name, "arguments": Mapping() as arguments, **more} if not more:
            if name in MODELS:
                return MODELS[name](**arguments)
            raise InputError(
                f"network {name!r} is not in the model zoo; known networks: {', '.join(sorted(MODELS))}.{did_you_mean(name, MODELS)}"
            )
    raise InputError(
        f"{spec!r} does not describe a network; give the dict that spec_of returned: a name and its arguments."
    )
