"""Speed of members that share a network: every line a ratio measured in one run, by medians of interleaved repeats.

    python benchmarks/shared_speed.py [--repeats 30] [--threads 2] [--clock wall|processor] [--networks mlp lenet_s]
        [--reference SITE_PACKAGES]

One training step (forward, backward, SGD with momentum; batch 128) of packed (2, 4, 1), EMP, ECMP and BatchEnsemble (4)
against the plain network, and one prediction of the same batch; BatchEnsemble against the plain network on the batch repeated four
times, which is what four separate networks take. `--reference` names a folder with torch-uncertainty and einops installed: its packed layers are then measured in the same run. Writes
benchmarks/results/shared_speed.json, one entry for each number of threads and clock. A busy machine makes wall times useless:
the load is written beside them, and with one thread the processor time is less sensitive to it. Freed memory is kept, as the
engine keeps it in training.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral import models
from choral.engine.trainers import Sharing, sharing_of
from choral.layers import FAMILY, Joint, swap
from choral.layers.convert import ends_of
from choral.layers.joint.network import channels_last
from choral.layers.keyed import keyed
from choral.structures import BatchEnsemble, Independent, Packed, Patched, Structure
from machine import RESULTS, write

BATCH, MEMBERS, WIDTH = 128, 4, 2
ALONE = Sharing()
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: models.mlp(64, 10, hidden=(512, 512, 512)), (64,)),
    "lenet_s": (lambda: models.lenet("S"), (3, 32, 32)),
    "resnet_cifar20": (lambda: models.resnet_cifar(20), (3, 32, 32)),
}
TARGETS = {
    "packed": {"mlp": 1.25, "resnet_cifar20": 1.55, "lenet_s": 2.2},
    "emp": dict.fromkeys(NETWORKS, 1.05),
    "ecmp": dict.fromkeys(NETWORKS, 1.15),
    "batch_ensemble": dict.fromkeys(NETWORKS, 1.25),
}


def stepper(
    network: nn.Module,
    lay_out: Callable[[], tuple[Tensor, Tensor]],
    unfold: Callable[[Tensor], Tensor],
    sharing: Sharing = ALONE,
) -> Any:
    """Return a function that takes one training step."""
    params = dict(network.named_parameters())
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        inputs, targets = lay_out()
        with keyed(1, 0, catch=False):
            outputs = unfold(network(inputs))  # (member, batch, class)
        loss = len(outputs) * F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        sharing.likelihood(loss).backward()
        sharing.weigh(params)
        optimizer.step()

    return step


def laid_out(tensor: Any) -> Any:
    """Return a network or batch with channels last where it has channels."""
    if isinstance(tensor, nn.Module):
        return channels_last(tensor)
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def ours(structure: Structure, build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> tuple[Any, Any, str]:
    """Return the training step of a structure, the prediction of a batch, and how its members are run."""
    network = structure.convert(build(), torch.Generator().manual_seed(0))
    network = laid_out(network) if x.dim() == 4 else network

    def lay_out() -> tuple[Tensor, Tensor]:
        inputs, targets = structure.feed(x, y)
        assert targets is not None
        return inputs, targets

    judged = copy.deepcopy(network).eval()

    def predict() -> None:
        with torch.no_grad(), keyed(1, 0, catch=False):
            structure.unfold(judged(structure.feed(x, None)[0]))

    sharing = sharing_of(structure, network)
    kernel = network.kernel if isinstance(network, Joint) else "plain"
    return stepper(network, lay_out, structure.unfold, sharing), predict, kernel


def reference_layers(folder: str) -> Any:
    """Return torch-uncertainty's packed layers without running the rest of its package, which needs torchvision."""
    sys.path.append(folder)
    inner = ("layers", "layers.functional", "methods")
    for name in ("torch_uncertainty", *(f"torch_uncertainty.{part}" for part in inner)):
        package = ModuleType(name)
        package.__path__ = [str(Path(folder, *name.split(".")))]
        sys.modules[name] = package
    import torch_uncertainty.layers.packed as packed  # type: ignore[import-not-found, unused-ignore]  # only with --reference

    return packed


def with_packed_layers(packed: Any, plain: nn.Module) -> nn.Module:
    """Return a network with torch-uncertainty's packed layers in place of the plain ones."""
    first, *_, last = (name for name, _ in ends_of(plain))
    options = {"alpha": WIDTH, "num_estimators": MEMBERS, "gamma": 1}

    def replace(name: str, layer: Any) -> nn.Module | None:
        ends = {"first": name == first, "last": name == last, "bias": getattr(layer, "bias", None) is not None}
        if isinstance(layer, nn.Linear):
            return packed.PackedLinear(layer.in_features, layer.out_features, **options, **ends)
        if isinstance(layer, nn.Conv2d):
            shape = {n: getattr(layer, n) for n in ("kernel_size", "stride", "padding")}
            return packed.PackedConv2d(layer.in_channels, layer.out_channels, **shape, **options, **ends)
        return nn.BatchNorm2d(layer.num_features * WIDTH) if isinstance(layer, nn.BatchNorm2d) else None

    return swap(plain, replace)


def reference(packed: Any, build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> Any:
    """Return the training step of torch-uncertainty's packed layers put into the same network."""
    network = with_packed_layers(packed, build())
    network = laid_out(network) if x.dim() == 4 else network
    targets = y.expand(MEMBERS, -1)
    return stepper(network, lambda: (x, targets), lambda out: out.unflatten(0, (MEMBERS, -1)))


def measure(
    steps: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float], *, burst: int = 1
) -> dict[str, float]:
    """Return the median seconds of every step, run in turn, in bursts whose first step finds the caches of another."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for turn in range(repeats + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:  # none always follows the same one
            for number in range(burst):
                started = clock()
                steps[name]()
                if turn > 1 and number == burst - 1:  # the first rounds warm up
                    seconds[name].append(clock() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Measure every network and print and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--reference", help="folder with torch-uncertainty and einops")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    load = os.getloadavg()[0]
    packed = reference_layers(arguments.reference) if arguments.reference else None
    results: dict[str, Any] = {}
    for name in arguments.networks:
        build, shape = NETWORKS[name]
        x, y = laid_out(torch.randn(BATCH, *shape)), torch.randint(0, 10, (BATCH,))
        tiled = laid_out(torch.cat([x] * MEMBERS)), torch.cat([y] * MEMBERS)
        steps, predictions, kernels = {}, {}, {}
        for label, structure in {
            "plain": Independent(),
            "packed": Packed(members=MEMBERS, width=WIDTH),
            # the layers of the others are too narrow for two groups
            **({"packed_2_groups": Packed(members=MEMBERS, width=WIDTH, subgroups=2)} if name == "mlp" else {}),
            "emp": Patched(mixture=FAMILY["emp"]),
            "ecmp": Patched(mixture=FAMILY["ecmp"]),
            "batch_ensemble": BatchEnsemble(members=MEMBERS),
        }.items():
            steps[label], predictions[label], kernels[label] = ours(structure, build, x, y)
        steps["tiled"], predictions["tiled"], _ = ours(Independent(), build, *tiled)
        if packed is not None:
            steps["torch_uncertainty_packed"] = reference(packed, build, x, y)
        long = name == "resnet_cifar20"  # its tensors are larger than any cache
        repeats = max(5, arguments.repeats // 3) if long else arguments.repeats
        results[name] = {"kernel": kernels}
        for kind, calls in (("", steps), ("prediction_", predictions)):
            seconds = measure(calls, repeats, clock, burst=1 if long else 3)
            ratios = {k: s / seconds["tiled" if k == "batch_ensemble" else "plain"] for k, s in seconds.items()}
            results[name] |= {f"{kind}seconds": seconds, f"{kind}ratios": ratios}
            for label, ratio in ratios.items():
                target = None if kind else TARGETS.get(label, {}).get(name)
                print(f"{name:15} {kind + label:25} {ratio:5.2f}x" + (f"  (target {target:.2f}x)" if target else ""))
    label = f"{arguments.threads} threads, {arguments.clock} time"
    earlier = RESULTS / "shared_speed.json"
    runs = json.loads(earlier.read_text())["runs"] if earlier.exists() else {}
    kept = runs.get(label, {}).get("results", {})
    loads = {"before": load, "after": os.getloadavg()[0]}
    runs[label] = {"results": kept | results, "load": loads, "repeats": arguments.repeats}
    print(write("shared_speed", {"runs": runs, "targets": TARGETS}))


if __name__ == "__main__":
    main()
