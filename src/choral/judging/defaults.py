"""Default networks and training for a problem, when the user has none of their own."""

from collections.abc import Callable

from torch import nn

from choral import models
from choral.base.errors import InputError, did_you_mean
from choral.data.problems import Problem
from choral.recipes.training import OPTIMISERS, Training

SIZES: dict[str, Callable[[Problem], nn.Module]] = {
    "mlp": lambda p: models.mlp(p.x_train[0].size, p.outputs, hidden=(64, 64)),
    "mlp_wide": lambda p: models.mlp(p.x_train[0].size, p.outputs, hidden=(200,)),
    "lenet_s": lambda p: _images(p, lambda c, s: models.lenet("S", classes=p.outputs, channels=c, side=s)),
    "lenet_m": lambda p: _images(p, lambda c, s: models.lenet("M", classes=p.outputs, channels=c, side=s)),
    "lenet_l": lambda p: _images(p, lambda c, s: models.lenet("L", classes=p.outputs, channels=c, side=s)),
    "resnet20": lambda p: _images(p, lambda c, s: models.resnet_cifar(20, classes=p.outputs, channels=c)),
}


def _images(problem: Problem, build: Callable[[int, int], nn.Module]) -> nn.Module:
    shape = problem.x_train.shape
    if len(shape) != 4:
        raise InputError(
            f"this network reads images (row, channel, height, width), but x has shape {shape}; use --model mlp."
        )
    return build(shape[1], shape[2])


def default_model(problem: Problem) -> str:
    """Return 'lenet_s' for images of at least 28 pixels, else 'mlp'."""
    shape = problem.x_train.shape
    return "lenet_s" if len(shape) == 4 and shape[2] >= 28 else "mlp"


def factory(problem: Problem, model: str | None = None) -> Callable[[], nn.Module]:
    """Return a network factory for a problem, checked once."""
    name = model or default_model(problem)
    if name not in SIZES:
        raise InputError(f"there is no model '{name}'; known: {', '.join(SIZES)}.{did_you_mean(name, SIZES)}")
    SIZES[name](problem)
    return lambda: SIZES[name](problem)


def training_for(
    problem: Problem,
    *,
    rate: float | None = None,
    optimiser: str | None = None,
    batch_size: int | None = None,
    schedule: str | None = None,
) -> Training:
    """Return training settings: Adam for perceptrons, SGD with momentum for images, unless said otherwise."""
    name = optimiser or ("sgd" if default_model(problem) != "mlp" else "adam")
    if name not in OPTIMISERS:
        raise InputError(
            f"there is no optimiser '{name}'; known: {', '.join(OPTIMISERS)}.{did_you_mean(name, OPTIMISERS)}"
        )
    return Training(
        rate=rate if rate is not None else (0.05 if name == "sgd" else 0.003),
        optimiser=OPTIMISERS[name],
        batch_size=batch_size or (128 if len(problem.x_train) > 5000 else 32),
        schedule=schedule or "cosine",  # type: ignore[arg-type]  # checked by Training
    )
