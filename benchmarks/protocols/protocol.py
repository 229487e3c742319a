"""What a protocol is: a table or figure of a paper as a value."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from choral.base.errors import InputError
from choral.plan import Collect, Part, Phase, Seq, seq
from choral.plan.phases import Repeat, Train, opened
from choral.recipes import METHODS
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

LENGTHS = ("explore_epochs", "exploit_epochs", "parent_epochs", "first_epochs", "step_epochs")
"""Options of recipes that are epochs; they shrink with the budget."""
PERCENT = ("accuracy", "top5", "member_accuracy", "c_accuracy")
"""Measures that papers print in percent, and so do their protocols."""
LOWER = ("nll", "ece", "ece20", "mce20", "c_nll", "c_ece", "tv", "rmse", "mae", "mce", "rmce", "w1")
"""Measures of which less is better."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a table: a network trained by a method on some data.

    Attributes:
        label: the paper's name of the line.
        method: name of the recipe.
        options: its arguments.
        training: optimizer, rate, batch size and schedule; None is the recipe's own.
        epochs: budget in all; None if the options say it.
        network: a name of `networks.NETWORKS`.
        data: 'cifar10', 'cifar100' or 'imdb'.
        points: training points, the first ones; None is all.
        augmented: whether images are padded, cropped and flipped; 'flip' only flips.
        draws: passes of each member that count at prediction; None is all.
        checkpoints: whether the network after every epoch is kept as a member.
        paper: what the paper reports, by measure; accuracies in percent.
    """

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Training | None = None
    epochs: int | None = None
    network: str
    data: str = "cifar10"
    points: int | None = None
    augmented: bool | str = False
    draws: int | None = None
    checkpoints: bool = False
    paper: Mapping[str, float] = field(default_factory=dict)

    def recipe(self, factor: float = 1.0) -> Recipe:
        """Return the recipe with all epochs times a factor, or more where its method cannot do with so few."""
        made = self._recipe(factor)
        return replace(made, plan=by_epoch(made.plan)) if self.checkpoints else made

    def _recipe(self, factor: float) -> Recipe:
        given = {n: max(1, round(factor * v)) if n in LENGTHS else v for n, v in self.options.items()}
        if self.training is not None:
            given["training"] = self.training
        if self.epochs is None:
            return METHODS[self.method].call(**given)
        for budget in range(max(1, round(factor * self.epochs)), self.epochs):
            with contextlib.suppress(InputError):
                return METHODS[self.method].call(budget=budget, **given)
        return METHODS[self.method].call(budget=self.epochs, **given)


def by_epoch(phase: Phase) -> Phase:
    """Return a plan that keeps the network after every epoch, and at no other time."""
    match phase:
        case Seq(phases=phases):
            return seq(*(one for p in phases if not isinstance(p, Collect) for one in opened(by_epoch(p))))
        case Repeat(body=body):
            return replace(phase, body=by_epoch(body))
        case Train(epochs=epochs):
            parts = (Part(phase.schedule, i / epochs, (i + 1) / epochs) for i in range(epochs))
            later: dict[str, Any] = {"memory": "carried", "least_steps": 1}
            trained = (replace(phase, epochs=1, schedule=p, **(later if i else {})) for i, p in enumerate(parts))
            return seq(*(one for part in trained for one in (part, Collect())))
        case _:
            return phase


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A protocol at one size.

    Attributes:
        rows: the lines.
        epochs: of the plain network; `--epochs` replaces it, and all rows shrink alike.
        seeds: runs of each line.
        hours: for all of them, on two cores or on the paper's GPU, about.
        gpu: whether it needs one.
        ood: data that are out of distribution, 'cifar100' or ''.
        corruptions: kinds of corruption; severities: of each; corrupted_rows: test images that are corrupted.
        test_rows: test points that count, the first ones; None is all.
        reference: whether the posterior of Hamiltonian Monte Carlo is compared with.
        splits: for tables of UCI sets, the function of `uci.py` that makes them, with `rows` empty.
        names: the UCI sets.
        settings: further arguments of that function.
        claims: what must come out at this size, besides the protocol's own.
    """

    rows: tuple[Row, ...] = ()
    epochs: int = 0
    seeds: int = 3
    hours: float
    gpu: bool = False
    ood: str = ""
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = (1, 2, 3, 4, 5)
    corrupted_rows: int = 10_000
    test_rows: int | None = None
    reference: bool = False
    splits: str = ""
    names: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple["Claim", ...] = ()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper: one line is better than another, or than 0, in every network and data set that has both."""

    better: str
    worse: str = ""
    measure: str = "accuracy"

    def holds(self, better: float, worse: float) -> bool:
        """Return whether means of the two lines agree with it."""
        return better < worse if self.measure in LOWER else better > worse


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A table or figure.

    Attributes:
        id: the paper and the number, such as 'pat-t1'.
        title: what it shows.
        measures: what is printed of each line.
        cpu: what two cores can do; None if nothing.
        paper: the paper's own size.
        quick: what one core does in minutes: fewer images, a smaller network, the same ratios.
        claims: what must come out.
        compute: for what holds without training: a function that returns lines {label, ours, paper}.
        why: what is to be said of it; of what cannot be run, the reason.
        missing: whether choral lacks a part that it needs.
        elsewhere: the results file of another script that makes it.
        figures: the paper's numbers by UCI set, line and measure, where lines are not rows.
    """

    id: str
    title: str
    measures: tuple[str, ...] = ("accuracy", "nll")
    cpu: Scale | None = None
    paper: Scale | None = None
    quick: Scale | None = None
    claims: tuple[Claim, ...] = ()
    compute: Callable[[], list[dict[str, Any]]] | None = None
    why: str = ""
    missing: bool = False
    elsewhere: str = ""
    figures: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)

    def scale(self, name: str) -> Scale | None:
        """Return the protocol at 'quick', 'cpu' or 'paper'."""
        return {"quick": self.quick, "cpu": self.cpu, "paper": self.paper}[name]


def figures(labels: tuple[str, ...], measures: tuple[str, ...], text: str) -> dict[str, dict[str, float]]:
    """Return a paper's numbers by label and measure, from one line of text for each label; '-' is none.

    >>> figures(("single",), ("accuracy", "nll"), "92.8 0.376")
    {'single': {'accuracy': 92.8, 'nll': 0.376}}
    """
    lines = [line.split() for line in text.strip().splitlines()]
    assert len(lines) == len(labels), (labels, lines)
    return {
        label: {m: float(v) for m, v in zip(measures, line, strict=True) if v != "-"}
        for label, line in zip(labels, lines)
    }
