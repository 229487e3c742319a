"""A reference posterior of a small perceptron by Hamiltonian Monte Carlo on all the data, chains side by side.

    CHORAL_DATA=... python benchmarks/hmc.py

writes benchmarks/results/hmc_words.json: mean probabilities of words in IMDB reviews (`datasets.words`), which `paper.py sae-t2 --scale
quick` compares with, and how far single chains are from the mean of the others.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

import fidelity
from datasets import words
from machine import write

HIDDEN, PRIOR_STD = 10, 1.0
CHAINS, WARMUP, SAMPLES, TARGET = 4, 100, 200, 0.8


def outputs(weights: Tensor, x: Tensor, classes: int) -> Tensor:
    """Return logits (chain, row, class) of a perceptron with one hidden layer, from flat weights (chain, weight)."""
    sizes = (x.shape[1] * HIDDEN, HIDDEN, HIDDEN * classes, classes)
    first, shift, last, bias = weights.split(sizes, 1)
    hidden = F.relu(x @ first.unflatten(1, (-1, HIDDEN)) + shift.unsqueeze(1))
    return hidden @ last.unflatten(1, (HIDDEN, -1)) + bias.unsqueeze(1)


def sample(x: Tensor, y: Tensor, x_test: Tensor, classes: int, seed: int = 0) -> tuple[Tensor, float]:
    """Return mean probabilities of each chain (chain, test row, class) and the share of accepted moves after the warmup.

    A trajectory is half a circle of the prior long, as in Izmailov et al. (2021), with a jittered step that the warmup fits to the
    target share.
    """
    draw = torch.Generator().manual_seed(seed)
    count = x.shape[1] * HIDDEN + HIDDEN + HIDDEN * classes + classes
    weights = PRIOR_STD * torch.randn(CHAINS, count, generator=draw) / 10
    labels = y.expand(CHAINS, -1)

    def energy(w: Tensor) -> tuple[Tensor, Tensor]:
        w = w.detach().requires_grad_()
        fits = F.cross_entropy(outputs(w, x, classes).movedim(2, 1), labels, reduction="none").sum(1)
        total = fits + w.square().sum(1) / (2 * PRIOR_STD**2)
        (slope,) = torch.autograd.grad(total.sum(), w)
        return total.detach(), slope

    step, taken = 0.02, 0.0
    means = torch.zeros(CHAINS, len(x_test), classes)
    for i in range(WARMUP + SAMPLES):
        size = step * (0.8 + 0.4 * float(torch.rand((), generator=draw)))
        momentum = torch.randn(weights.shape, generator=draw)
        before, slope = energy(weights)
        before = before + momentum.square().sum(1) / 2
        moved = weights
        for _ in range(max(1, round(math.pi / 2 * PRIOR_STD / size))):
            momentum = momentum - size / 2 * slope
            moved = moved + size * momentum
            after, slope = energy(moved)
            momentum = momentum - size / 2 * slope
        rise = after + momentum.square().sum(1) / 2 - before
        kept = torch.rand(CHAINS, generator=draw) < (-rise).exp()
        weights = torch.where(kept.unsqueeze(1), moved, weights)
        if i < WARMUP:
            step *= math.exp(float((-rise).clamp(max=0).exp().nan_to_num(0).mean() - TARGET) / (1 + i) ** 0.6)
        else:
            taken += float(kept.double().mean()) / SAMPLES
            means += outputs(weights, x_test, classes).softmax(-1) / SAMPLES
    return means.double(), taken


def main() -> None:
    """Sample and write."""
    torch.set_num_threads(1)
    x, y, x_test, _ = words()
    chains, taken = sample(torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(x_test), 2)
    others = [chains[torch.arange(CHAINS) != i].mean(0) for i in range(CHAINS)]
    floor = {
        "agreement": min(fidelity.agreement(one, rest) for one, rest in zip(chains, others)),
        "tv": max(fidelity.total_variation(one, rest) for one, rest in zip(chains, others)),
    }
    print(f"accepted {taken:.2f}, of a chain from the others at most {floor}")
    settings = {"hidden": HIDDEN, "prior_std": PRIOR_STD, "chains": CHAINS, "samples": SAMPLES}
    positive = " ".join(f"{p:.4f}" for p in chains.mean(0)[:, 1].tolist())
    print(write("hmc_words", {"settings": settings, "accepted": taken, "between_chains": floor, "positive": positive}))


if __name__ == "__main__":
    main()
