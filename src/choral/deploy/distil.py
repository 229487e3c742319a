"""Distillation: one network that predicts the distribution of an ensemble, with its aleatoric and epistemic parts."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from choral.base.errors import InputError
from choral.base.types import Build
from choral.base.values import guarded
from choral.data.sources import inputs_in, is_dataset
from choral.ensemble.ensemble import Ensemble
from choral.fit import check_options, train
from choral.objectives.likelihoods import Likelihood, SoftClasses, SoftGaussian, TargetScale
from choral.objectives.likelihoods.distilled import matching_precision
from choral.predictions import Classification, Numbers
from choral.recipes.recipe import Recipe

_LEAST = 1e-8  # variance in units of the predicted means' own


@guarded
def distil(
    ensemble: Ensemble,
    build: Build | nn.Module,
    data: Any,
    recipe: Recipe | str = "single",
    *,
    split: bool = True,
    **options: Any,
) -> Ensemble:
    """Train one network to reproduce the predictions of an ensemble; the result is an ensemble of one member.

    >>> from choral import fit
    >>> x, y = torch.randn(64, 4), torch.arange(64) % 3
    >>> teacher = fit(lambda: nn.Linear(4, 3), (x, y), "deep_ensemble", progress=False)
    >>> distil(teacher, lambda: nn.Linear(4, 3), x, progress=False).predict(x).mutual_information.shape
    torch.Size([64])

    Its targets are the ensemble's predictions with corrections: probabilities of classes, mean and variance of numbers.

    Args:
        ensemble: the teacher.
        build: the network, as in `fit`: one output for each class, or 3 for each number (mean, aleatoric and epistemic variance).
        data: inputs as in `predict`, or a pair (x, y) as in `fit`, whose labels are ignored; preferably more inputs than the ensemble was
            trained on. Targets are predictions before random transforms.
        recipe: the method that trains the network.
        split: learn epistemic uncertainty too, by a Dirichlet over class probabilities or a second variance. Otherwise all uncertainty is
            aleatoric, and numbers take 2 outputs.
        options: options of `fit`. transforms are the ensemble's unless given; validation is labeled data.
    """
    check_options("distil", ("split",), options)
    x = ensemble._arranged(_inputs(ensemble, data))
    found: Any = ensemble._predictive(x)
    likelihood: Likelihood
    if found.task == "classification":
        targets, likelihood = _classes(found, split)
    elif found.task == "regression":
        targets, likelihood = _numbers(found, split, ensemble._interface.target)
    else:
        raise InputError(f"the ensemble predicts {found.task}; only classes and real numbers are distilled.")
    given = {"transforms": ensemble._inputs, "validation": None, "table": ensemble.table} | options
    pairs = _Taught(x, targets) if is_dataset(x) else (x, targets)
    return train(build, pairs, recipe, likelihood=likelihood, **given)


def _classes(found: Classification, split: bool) -> tuple[Tensor, Likelihood]:
    """Return probabilities, and the logarithm of a precision if there is a split."""
    if not split:
        return found.probs, SoftClasses(axis=found.axis)
    logs = matching_precision(found.probs, found.epistemic, found.axis)
    level = float(logs.mean()) - math.log(found.probs.shape[found.axis])  # so that outputs of 0 have the mean
    targets = torch.cat([found.probs, (logs - level).to(found.probs.dtype)], found.axis)
    return targets, SoftClasses(level=level, axis=found.axis)


def _numbers(found: Numbers, split: bool, shape: tuple[int, ...] | None) -> tuple[Tensor, Likelihood]:
    """Return means and the logarithms of variances in units of the means' deviation."""
    mean = found.mean.double()
    scale = TargetScale.of(mean if mean.dim() == 2 else mean.reshape(-1, 1))
    size = scale.widen(torch.ones_like(mean)).square()
    each = [found.aleatoric, found.epistemic] if split else [found.variance]
    logs = [(part.double() / size).clamp_min(_LEAST).log() for part in each]
    level = tuple(float(log.mean()) for log in logs)
    parts = [scale.apply(mean), *(log - middle for log, middle in zip(logs, level))]
    return torch.cat(parts, 1).float(), SoftGaussian(scale=scale, level=level, shape=shape)


def _inputs(ensemble: Ensemble, data: Any) -> Any:
    several = bool({"tuple", "list"} & set(ensemble._interface.reads or ()))
    pair = isinstance(data, tuple | list) and (not several or isinstance(data[0], tuple | list))
    return data[0] if pair else data


class _Taught(Dataset[Any]):
    """The inputs of a dataset, with other targets."""

    def __init__(self, data: Any, targets: Tensor):
        self.data, self.targets = data, targets

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return inputs_in(self.data[index]), self.targets[index]
