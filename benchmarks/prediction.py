"""Speed of prediction: every line a ratio measured in one process, by medians of interleaved repeats.

    python benchmarks/prediction.py --rivals SITE_PACKAGES [--repeats 15] [--only packed dropout] [--clock processor|wall]

`predict` of trained ensembles against what other libraries do with networks of the same sizes, and against loops over plain
networks; every call returns the outputs of all members. `--rivals` names a folder with torch-uncertainty 0.13.0, bayesian-torch
0.5.0 and tabm 0.0.3 (installed without their own dependencies, beside einops and rtdl_num_embeddings). Of torch-uncertainty only its packed
layers and its dropout wrapper are imported: the whole package needs torchvision and lightning. Without `--rivals` their columns
stay empty. One thread; the processor's time, which a busy machine disturbs less. Writes benchmarks/results/prediction.json.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import torch
from torch import Tensor, nn

import choral
from choral import models
from choral.layers import swap
from choral.recipes import batch_ensemble, bnn, deep_ensemble, masksembles, mc_dropout, packed
from choral.recipes.training import Training
from machine import write
from shared_speed import laid_out, reference_layers, with_packed_layers

FEATURES, CLASSES, DRAWS = 64, 10, 10
IMAGE = (3, 32, 32)
RIVALS = ("torch-uncertainty", "bayesian-torch", "tabm")
Call = Callable[[], Any]
IMAGE_NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "LeNet-S": lambda: models.lenet("S"),
    "resnet_cifar(20)": lambda: models.resnet_cifar(20),
}


@dataclass
class Line:
    """One comparison: our call, those of others, and the most ours may take of the best of them."""

    name: str
    ours: Call
    others: dict[str, Call]
    target: float = 1.05


def mlp() -> nn.Module:
    """Return the perceptron of most lines."""
    return models.mlp(FEATURES, CLASSES, hidden=(512, 512, 512))


def small_mlp() -> nn.Module:
    """Return the perceptron of which many are stacked."""
    return models.mlp(FEATURES, CLASSES, hidden=(256, 256, 256))


def inputs(rows: int, image: bool) -> Tensor:
    """Return random inputs."""
    return torch.randn(rows, *(IMAGE if image else (FEATURES,)))


def trained(build: Callable[[], nn.Module], recipe: Any, image: bool = False) -> choral.Ensemble:
    """Return an ensemble trained for a moment: its speed does not depend on what it knows."""
    return choral.fit(
        build, (inputs(32, image), torch.arange(32) % CLASSES), recipe, compute=choral.Compute(executor="sequential")
    )


def looped(networks: list[nn.Module], x: Tensor) -> Call:
    """Return a loop over plain networks."""
    return lambda: torch.stack([network(x) for network in networks])


def passes(network: nn.Module, x: Tensor) -> Call:
    """Return several passes of one network that draws."""
    return lambda: torch.stack([network(x) for _ in range(DRAWS)])


def packed_lines(rivals: str | None) -> Iterator[Line]:
    """A packed perceptron against its joint network's own call and torch-uncertainty's layers."""
    ensemble = trained(mlp, packed(budget=1, members=4, width=2))
    joint = ensemble._network()
    theirs = None if rivals is None else with_packed_layers(reference_layers(rivals), mlp()).eval()
    for rows in (1, 100, 1000):
        x = inputs(rows, image=False)
        yield Line(
            f"packed MLP, {rows} rows, own call",
            partial(ensemble.predict, x),
            {"joint network": partial(joint, x)},
            1.5,
        )
        if theirs is not None:
            yield Line(
                f"packed MLP, {rows} rows", partial(ensemble.predict, x), {"torch-uncertainty": partial(theirs, x)}
            )


def packed_image_lines(rivals: str | None) -> Iterator[Line]:
    """Packed convolutional networks against torch-uncertainty's layers."""
    for name, build in IMAGE_NETWORKS.items():
        ensemble = trained(build, packed(budget=1, members=4, width=2), image=True)
        if rivals is None:
            continue
        theirs = laid_out(with_packed_layers(reference_layers(rivals), build())).eval()
        for rows in (1, 256):
            x = laid_out(inputs(rows, image=True))
            others = {"torch-uncertainty": partial(theirs, x)}
            yield Line(f"packed {name}, {rows} rows", partial(ensemble.predict, x), others)


def masked_lines(rivals: str | None) -> Iterator[Line]:
    """Masksembles on LeNet-S against torch-uncertainty's layers on the repeated batch."""
    ensemble = trained(IMAGE_NETWORKS["LeNet-S"], masksembles(budget=1, members=4), image=True)
    theirs = None if rivals is None else laid_out(masked(IMAGE_NETWORKS["LeNet-S"]())).eval()
    for rows in (1, 256):
        x = laid_out(inputs(rows, image=True))

        def repeated(x: Tensor = x) -> Tensor:
            assert theirs is not None
            found: Tensor = theirs(x.repeat(4, 1, 1, 1))
            return found

        others: dict[str, Call] = {} if theirs is None else {"torch-uncertainty": repeated}
        yield Line(f"Masksembles LeNet-S, {rows} rows", partial(ensemble.predict, x), others)


def masked(network: nn.Module) -> nn.Module:
    """Return torch-uncertainty's network in place of a plain one: masks before every layer but the first."""
    from torch_uncertainty.layers.masksembles import (  # type: ignore[import-not-found, unused-ignore]  # with --rivals
        MaskedConv2d,
        MaskedLinear,
    )

    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]

    def replaced(name: str, layer: Any) -> nn.Module | None:
        if name not in layers[1:]:
            return None
        if isinstance(layer, nn.Linear):
            made: nn.Module = MaskedLinear(layer.in_features, layer.out_features, 4, 2.0)
            return made
        sizes = (layer.in_channels, layer.out_channels, layer.kernel_size)
        made = MaskedConv2d(*sizes, 4, 2.0, stride=layer.stride, padding=layer.padding)
        return made

    return swap(network, replaced)


def stacked_lines(rivals: str | None) -> Iterator[Line]:
    """20 perceptrons against a loop."""
    ensemble = trained(small_mlp, deep_ensemble(budget=20, members=20))
    networks = [ensemble.member(i) for i in range(20)]
    for rows in (1, 10, 100, 1000):
        x = inputs(rows, image=False)
        yield Line(f"20 MLPs, {rows} rows", partial(ensemble.predict, x), {"loop": looped(networks, x)}, 1.0)


def image_lines(rivals: str | None) -> Iterator[Line]:
    """Deep ensembles of convolutional networks against a loop with channels last."""
    for name, build in IMAGE_NETWORKS.items():
        ensemble = trained(build, deep_ensemble(budget=4, members=4), image=True)
        networks = [laid_out(ensemble.member(i)) for i in range(4)]
        for rows in (1, 256):
            x = laid_out(inputs(rows, image=True))
            yield Line(f"4 {name}, {rows} rows", partial(ensemble.predict, x), {"loop": looped(networks, x)})


def bayesian_lines(rivals: str | None) -> Iterator[Line]:
    """Bayesian networks, 10 passes, against bayesian-torch."""
    for name, build, image, sizes in (
        ("MLP", mlp, False, (1, 100, 1000)),
        ("LeNet-S", lambda: models.lenet("S"), True, (1, 256)),
    ):
        ensemble = trained(
            build, bnn(budget=1, draws=DRAWS, training=Training(optimizer="sgd", batch_size=128, lr=1e-3)), image
        )
        theirs = None if rivals is None else bayesian(build(), image)
        for rows in sizes:
            x = laid_out(inputs(rows, image))
            others = {} if theirs is None else {"bayesian-torch": passes(theirs, x)}
            yield Line(f"BNN {name}, {rows} rows", partial(ensemble.predict, x), others)


def bayesian(network: nn.Module, image: bool) -> nn.Module:
    """Return bayesian-torch's network in place of a plain one."""
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn  # type: ignore[import-not-found, unused-ignore]  # with --rivals

    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -6.0}
    dnn_to_bnn(network, settings | {"type": "Reparameterization", "moped_enable": False})
    for module in network.modules():
        if hasattr(module, "dnn_to_bnn_flag"):
            module.dnn_to_bnn_flag = True  # outputs without the divergence, the cheaper call
    return laid_out(network).eval() if image else network.eval()


def dropout_lines(rivals: str | None) -> Iterator[Line]:
    """MC dropout, 10 passes, against torch-uncertainty in a loop and on the batch axis."""
    for name, build, image, sizes in (
        ("MLP", mlp, False, (1, 100, 1000)),
        ("LeNet-S", lambda: models.lenet("S"), True, (1, 256)),
    ):
        ensemble = trained(build, mc_dropout(budget=1, draws=DRAWS), image)
        for rows in sizes:
            x = laid_out(inputs(rows, image))
            others = {}
            if rivals is not None:
                for label, on_batch in {"torch-uncertainty, loop": False, "torch-uncertainty, batch": True}.items():
                    others[label] = partial(dropping(build(), image, on_batch), x)
            yield Line(f"MC dropout {name}, {rows} rows", partial(ensemble.predict, x), others)


def dropping(network: nn.Module, image: bool, on_batch: bool) -> nn.Module:
    """Return torch-uncertainty's wrapper of a network with dropout where ours has it: behind every layer but the last."""
    from torch_uncertainty.methods.mc_dropout import mc_dropout as wrap  # type: ignore[import-not-found, unused-ignore]  # in the rivals' environment

    def dropped(layer: nn.Module) -> nn.Module:
        return nn.Sequential(layer, nn.Dropout(0.1))

    layers = [name for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    network = swap(network, lambda name, layer: dropped(layer) if name in layers[:-1] else None)
    wrapped: nn.Module = wrap(laid_out(network) if image else network, DRAWS, on_batch=on_batch)
    return wrapped.eval()


def rank_one_lines(rivals: str | None) -> Iterator[Line]:
    """BatchEnsemble with 32 members against tabm."""
    ensemble = trained(mlp, batch_ensemble(budget=1, members=32))
    theirs = None
    if rivals is not None:
        import tabm  # type: ignore[import-not-found, unused-ignore]  # with --rivals

        plain = nn.Sequential(*(layer for layer in mlp().modules() if isinstance(layer, nn.Linear | nn.ReLU)))
        tabm.batchensemble_linear_layers_(plain, k=32, scaling_init="normal")
        theirs = nn.Sequential(tabm.EnsembleView(k=32), plain).eval()
    for rows in (1, 100, 1000):
        x = inputs(rows, image=False)
        others = {} if theirs is None else {"tabm": partial(theirs, x)}
        yield Line(f"BatchEnsemble of 32, {rows} rows", partial(ensemble.predict, x), others)


KINDS: dict[str, Callable[[str | None], Iterator[Line]]] = {
    "packed": packed_lines,
    "packed_images": packed_image_lines,
    "masked": masked_lines,
    "stacked": stacked_lines,
    "images": image_lines,
    "bayesian": bayesian_lines,
    "dropout": dropout_lines,
    "rank_one": rank_one_lines,
}


def measure(calls: dict[str, Call], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of every call; calls come in turn, each often enough to be seen by the clock."""
    often: dict[str, int] = {}
    for name, call in calls.items():
        call(), call()
        started = clock()
        call()
        often[name] = max(1, min(100, round(0.01 / max(clock() - started, 1e-6))))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(repeats + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            calls[name]()  # finds the caches of another
            started = clock()
            for _ in range(often[name]):
                calls[name]()
            if turn:
                seconds[name].append((clock() - started) / often[name])
    return {name: statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    """Measure every line and print and write the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", help="folder with torch-uncertainty, bayesian-torch and tabm")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--clock", choices=("wall", "processor"), default="processor")
    parser.add_argument("--only", nargs="+", default=list(KINDS), choices=list(KINDS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.rivals:
        sys.path.append(arguments.rivals)
        reference_layers(arguments.rivals)
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    load, lines = os.getloadavg()[0], []
    for kind in arguments.only:
        for line in KINDS[kind](arguments.rivals):
            with torch.no_grad():
                seconds = measure({"ours": line.ours} | line.others, arguments.repeats, clock)
            best = min((seconds[name] for name in line.others), default=None)
            ratio = None if best is None else seconds["ours"] / best
            lines.append({"line": line.name, "seconds": seconds, "ratio": ratio, "target": line.target})
            shown = "   -" if ratio is None else f"{ratio:4.2f}"
            times = ", ".join(f"{name} {1e3 * value:.3f}" for name, value in seconds.items())
            print(f"{line.name:40} {shown}x (target {line.target:.2f}x)  milliseconds: {times}", flush=True)
    loads = {"before": load, "after": os.getloadavg()[0]}
    if len(arguments.only) == len(KINDS):
        versions = {n: metadata.version(n) for n in RIVALS} if arguments.rivals else {}
        print(write("prediction", {"lines": lines, "load": loads, "rivals": versions, "clock": arguments.clock}))


if __name__ == "__main__":
    main()
