"""Neuron-pruned children, masked against compacted: seconds of a forward pass, stored bytes, largest difference.

    python benchmarks/compaction.py

Both networks of a pair hold the same member; times are medians of interleaved repeats on a batch of 128.
"""

import copy

import torch
from torch.utils.flop_counter import FlopCounterMode

from choral import models
from choral.compaction import compact, neuron_param_mask, tied_groups
from choral.engine.files import pack_tensors
from choral.engine.inspect import executed
from choral.masks import keep_vectors, prunable, random_masks
from engine import interleaved
from machine import write


def _run(network: torch.nn.Module, batch: torch.Tensor) -> None:
    network(batch)


def _flops(network: torch.nn.Module, batch: torch.Tensor) -> int:
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(batch)
    return counter.get_total_flops()


def measure(name: str, network: torch.nn.Module) -> dict[str, float | str]:
    """Return the ratios for one network with half of its neurons removed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 3, 32, 32, generator=generator)
    network.eval()
    weights = prunable(network, unit="neuron", calls=executed(network, x[:2]))
    shapes = {n: p.shape for n, p in network.named_parameters() if n in weights}
    groups = tied_groups(network, x[:2])
    keep = keep_vectors(random_masks(shapes, generator, density=0.5, unit="neuron", groups=groups))
    masked = copy.deepcopy(network)
    with torch.no_grad():
        for n, mask in neuron_param_mask(network, keep, x[:2]).items():
            masked.get_parameter(n).mul_(mask)
    result = compact(masked, keep, x[:2])
    small = result.network.eval().to(memory_format=torch.channels_last)
    masked = masked.to(memory_format=torch.channels_last)
    batch = x.to(memory_format=torch.channels_last)
    with torch.inference_mode():
        before, after = interleaved(lambda: _run(masked, batch), lambda: _run(small, batch), 15)
        difference = float((masked(batch) - small(batch)).abs().max())
    sizes = [len(pack_tensors(dict(n.state_dict()))) for n in (masked, small)]
    return {
        "network": name,
        "masked_seconds": before,
        "compacted_seconds": after,
        "faster": before / after,
        "stored": sizes[1] / sizes[0],
        "flops": _flops(result.network, x[:2]) / _flops(masked, x[:2]),
        "largest_difference": difference,
    }


def main() -> None:
    """Measure both networks."""
    torch.manual_seed(0)
    rows = [measure("lenet L", models.lenet("L")), measure("resnet_cifar 20", models.resnet_cifar(20))]
    for row in rows:
        print(row)
    print(write("compaction", {"rows": rows}))


if __name__ == "__main__":
    main()
