"""Portraits of values: equal for equal things, in every process, and different for everything that makes a difference."""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from choral.base.values import Function, portrait


class Slotted:
    __slots__ = ("__b", "a")

    def __init__(self, a):
        self.a, self.__b = 0, a


class Held:
    def __init__(self, k):
        self.k = k

    def __call__(self, x):
        return x * self.k

    def method(self, x):
        return x * self.k


class Settings:
    """Not callable."""

    def __init__(self, k):
        self.inside = {"deep": [SimpleNamespace(k=k)]}


@dataclass
class Config:
    k: object


class Huber(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.inner = nn.HuberLoss(delta=float(delta))

    def forward(self, o, t):
        return self.inner(o, t)


def around(value):
    return lambda x: (x, value)


def default(value):
    def f(x, by=value):
        return x, by

    return f


def attributed(value):
    def f(x):
        return x * f.k

    f.k = value
    return f


def wrapped(function):
    @functools.wraps(function)
    def f(*args):
        return function(*args)

    return f


def named(value):
    space = {"GLOBAL": value}
    exec("def f(x):\n    return x * GLOBAL", space)
    return space["f"]


def weighted(value):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, float(value))
    nn.init.zeros_(layer.bias)
    return layer


KINDS = {
    "float32": np.float32,
    "int64": np.int64,
    "float64": np.float64,
    "partial": lambda k: functools.partial(max, k, key=k),
    "bound": lambda k: Held(k).method,
    "built in bound": lambda k: [k].count,
    "slots": Slotted,
    "callable": Held,
    "object": Settings,
    "tensor": torch.tensor,
    "array": lambda k: np.full(9, k),
    "words": lambda k: np.array([str(k)] * 9),
    "objects": lambda k: np.array([Held(k), None], dtype=object),
    "half": lambda k: torch.full((9,), float(k), dtype=torch.bfloat16),
    "complex": lambda k: torch.full((9,), complex(k, 1)).conj(),
    "sparse": lambda k: torch.eye(9).mul(k).to_sparse(),
    "nested": lambda k: torch.nested.nested_tensor([torch.ones(2), torch.full((3,), float(k))], layout=torch.jagged),
    "dict": lambda k: {(1, "a"): Held(k), "b": 1},
    "set": lambda k: {"a", "b", "c", str(k)},
    "namespace": lambda k: SimpleNamespace(k=k),
    "dataclass": Config,
    "long": lambda k: [0] * 300 + [k],
    "torch loss": lambda k: nn.HuberLoss(delta=float(k)),
    "own loss": Huber,
    "weights": weighted,
    "distribution": lambda k: torch.distributions.Normal(0.0, float(k)),
    "ema": lambda k: torch.optim.swa_utils.get_ema_multi_avg_fn(k / 10),
    "attribute": attributed,
}
AROUND = {
    "closure": around,
    "default": default,
    "partial": lambda v: functools.partial(divmod, v),
    "cached": lambda v: functools.lru_cache(around(v)),
    "wrapped": lambda v: wrapped(around(v)),
    "no_grad": lambda v: torch.no_grad()(around(v)),
}


@pytest.mark.parametrize("place", AROUND)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_function_holds_counts(kind, place):
    made = [Function.of(AROUND[place](KINDS[kind](k))) for k in (1, 1, 9)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("kind", ["float32", "partial", "tensor", "dict", "namespace", "dataclass", "own loss", "long"])
def test_globals_that_code_names_count(kind):
    made = [Function.of(named(KINDS[kind](k))) for k in (1, 1, 9)]
    assert made[0] == made[1] != made[2]


def test_two_functions_of_one_line_are_told_apart():
    first, second = [lambda x: x + 1, lambda x: x * 2]
    assert Function.of(first) != Function.of(second)


def test_cycles_and_sizes_are_bounded():
    ring = [1]
    ring.append(ring)
    held = Held(None)
    held.k = held.method
    wide = [[[list(range(40))] * 40] * 40] * 40
    for value in (ring, held, wide, "x" * 10**6):
        assert len(portrait(value)) <= 250


@pytest.mark.full
def test_portraits_are_those_of_the_next_process():
    code = (
        "from tests.base.test_function_identity import AROUND, KINDS, named; from choral.base.values import Function\n"
        "print([Function.of(AROUND[a](KINDS[k](1))).digest for a in AROUND for k in KINDS])\n"
        "print([Function.of(named(KINDS[k](1))).digest for k in KINDS])"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    path = os.pathsep.join([root, *sys.path])
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
        ).stdout
        for seed in "12"
    ]
    assert said[0] == said[1]
