"""Weights of classes: what a row of each class counts in training, as weights of rows."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from choral.base.errors import InputError, did_you_mean
from choral.base.text import short
from choral.data.problems import Problem

BALANCED = "balanced"


def balanced(problem: Problem, asked: str | Mapping[str, float]) -> tuple[Problem, dict[str, float]]:
    """Return a problem whose training rows count by their classes, and the weights by the names of classes.

    'balanced' lets every class count the same in all, n / (classes * rows of the class), so that weights average 1 over the rows.
    Weights that rows have already are multiplied.

    Args:
        problem: the data, of classes.
        asked: 'balanced', or weights by class, as a dict or in the words of the shell ('yes=5,no=1'); others count 1.
    """
    if problem.task != "classification" and problem.likelihood != "bernoulli":
        raise InputError(
            "class weights are for targets that are classes, and this one is a number; give every row a weight, or leave them out."
        )
    labels = problem.y_train.astype(np.int64)
    if labels.ndim != 1:
        raise InputError(f"class weights are for one class a row, but y has shape {labels.shape}; leave them out.")
    names = problem.table.classes if problem.table is not None else ()
    names = names or tuple(map(str, range(int(labels.max()) + 1)))
    if asked == BALANCED:
        counts = np.bincount(labels, minlength=len(names))
        each = {n: len(labels) / (np.count_nonzero(counts) * c) if c else 1.0 for n, c in zip(names, counts)}
    else:
        each = dict.fromkeys(names, 1.0) | _given(asked, names)
    weights = np.array([each[n] for n in names])[labels]
    if not weights.any():
        raise InputError(f"class weights are {asked!r}, which count no training row; give one class more than 0.")
    return replace(problem, weights=weights if problem.weights is None else weights * problem.weights), each


def _given(asked: str | Mapping[str, float], names: tuple[str, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    pairs = list(asked.items()) if isinstance(asked, Mapping) else [_pair(part) for part in asked.split(",")]
    for name, weight in pairs:
        key = str(name)
        if key not in names:
            known = ", ".join(short(n, 20) for n in names[:10])
            raise InputError(f"class weights name {short(key)!r}; the classes are {known}.{did_you_mean(key, names)}")
        if key in found or not 0 <= weight < math.inf:
            what = "twice" if key in found else f"with {weight:g}"
            raise InputError(
                f"class weights name {short(key)!r} {what}; give each class once, with a number of 0 or more."
            )
        found[key] = float(weight)
    return found


def _pair(text: str) -> tuple[str, float]:
    name, sign, weight = text.rpartition("=")
    try:
        return (name if sign else text).strip(), float(weight)
    except ValueError:
        raise InputError(
            f"class weights hold {short(text)!r}; write balanced, or CLASS=WEIGHT with commas between, such as yes=5,no=1."
        ) from None
