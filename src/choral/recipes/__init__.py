"""Recipes: one short file for each paper, and `METHODS`, the dict of all methods.

Arguments that recipes share are described here; `help` of a recipe shows all of its arguments. Arguments of structures, penalties and
operators are described by their classes.

Args:
    epochs: length of one training; of each member if members are trained separately.
    budget: epochs of all trainings together, instead of `epochs`.
    members: number of members: networks, or parts of a joint network.
    combine: how predictions of classes are averaged: 'probs', 'logits' or 'vote' (`choral.recipes.recipe.Recipe`).
    training: optimizer, learning rate, batch size and schedule (`choral.recipes.training.Training`), or 'paper'.
    pretrained: start from the weights of the network passed to `fit`.
    kernel: how the members of a joint network are run (`choral.structures.base.JointStructure`).
"""

import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from choral.base.errors import InputError, did_you_mean, no_attribute
from choral.base.values import Value, typed
from choral.plan import Train
from choral.recipes.anchored import anchored
from choral.recipes.bagged import bagged
from choral.recipes.batch_ensemble import batch_ensemble
from choral.recipes.bnn import bnn
from choral.recipes.deep_ensemble import deep_ensemble
from choral.recipes.drop_connect import drop_connect
from choral.recipes.dst import dst, edst
from choral.recipes.emp import ecmp, emp
from choral.recipes.fge import fge
from choral.recipes.horizontal_voting import horizontal_voting
from choral.recipes.hyper_ensemble import hyper_ensemble
from choral.recipes.late_phase import late_phase
from choral.recipes.masksembles import masksembles
from choral.recipes.mc_dropout import mc_dropout
from choral.recipes.mimo import mimo
from choral.recipes.mothernets import mothernets
from choral.recipes.packed import packed
from choral.recipes.prune_and_tune import prune_and_tune
from choral.recipes.rank1_bnn import rank1_bnn
from choral.recipes.recipe import Recipe
from choral.recipes.sebays import bnn_sequential, sebays_freeze, sebays_no_freeze
from choral.recipes.sequential_anchored import sequential_anchored
from choral.recipes.single import single
from choral.recipes.snapshot import snapshot
from choral.recipes.ssbnn import ssbnn
from choral.recipes.swa import swa
from choral.recipes.swag import swag
from choral.recipes.tabm import tabm, tabm_mini
from choral.recipes.tabpack import tabpack
from choral.recipes.training import Training
from choral.recipes.treenet import treenet

__all__ = [
    "anchored", "bagged", "batch_ensemble", "bnn", "bnn_sequential", "deep_ensemble", "drop_connect", "dst", "ecmp",
    "edst", "emp", "fge", "horizontal_voting", "hyper_ensemble", "late_phase", "masksembles", "mc_dropout", "mimo", "mothernets", "packed",
    "prune_and_tune", "rank1_bnn", "sebays_freeze", "sebays_no_freeze", "sequential_anchored", "single", "snapshot", "ssbnn", "swa",
    "swag", "tabm", "tabm_mini", "tabpack", "treenet",
]  # fmt: skip

FEW = 5_000
"""Points of a small problem."""
_FEW_NODES: dict[str, Any] = {"rho": -2.0, "anneal": 0.5, "kl_weight": 0.1}
"""Wider deviations at the start, and a KL that grows to a tenth: with the papers' settings every gate closes on a table, since the KL of a node
outweighs what it explains. Chosen on parts of the training rows of digits, boston and breast cancer: accuracy of `sebays_freeze` on digits
0.09 with the paper's, 0.88 without the tenth, 0.95 with it."""


@dataclass(frozen=True)
class Method:
    """A registered method.

    Attributes:
        build: makes the recipe.
        family: its group in lists of methods.
        depends: whether it needs its own optimizer, learning rate and schedule, so that a comparison must not replace them.
        for_few: options that comparisons and tables use for fewer than `FEW` rows, where the paper's settings fail.
    """

    build: Callable[..., Recipe]
    family: str
    depends: bool = False
    for_few: Mapping[str, Any] = field(default_factory=dict)

    def trained(self, shared: Training, **said: Any) -> Training:
        """Return its training settings in a comparison: the shared ones, or its own with their batch size.

        Args:
            shared: settings shared by all methods.
            said: settings that the user chose for this method, which always count.
        """
        own = self.options["training"].default
        return replace(own, **{"batch_size": shared.batch_size} | said) if self.depends else shared

    @functools.cached_property
    def call(self) -> Callable[..., Recipe]:
        """The public builder, with checked arguments and the paper in its docstring."""
        made = typed(self.build)

        @functools.wraps(self.build)
        def call(*args: Any, **given: Any) -> Recipe:
            recipe = made(*args, **given)
            said = any(value is not None and (n == "budget" or n.endswith("epochs")) for n, value in given.items())
            return recipe if said else replace(recipe, enough=True)

        call.__doc__ = self._help()
        return call

    def _help(self) -> str:
        """Return the builder's docstring with its paper, an example and all arguments."""
        head, _, rest = inspect.cleandoc(self.build.__doc__ or "").partition("\n\nArgs:\n")
        own, _, after = rest.partition("\n\n")
        said = _explained(f"Args:\n{own}")
        kinds = [base for kind in _kinds(self.build()) if kind is not Train for base in kind.__mro__]
        sources = [_explained(__doc__ or ""), *(_explained(inspect.getdoc(kind) or "") for kind in kinds)]
        lines = []
        for name in self.options:
            text = said.get(name, "")
            pointer = re.match(r"as in `(\w+)`", text) if text else re.search(r"Args are those of `(\w+)`", head)
            if pointer:
                there = _explained(METHODS[pointer[1]].call.__doc__ or "").get(name, "")
                text = there.rstrip(".") + text[pointer.end() :] if text else there
            lines += textwrap.wrap(
                f"{name}: {text or next((s[name] for s in sources if name in s), '')}", 110, subsequent_indent="    "
            )
        if self.paper:
            head = head.replace("\n\nCost: ", f"\n\nReference: {self.paper}\n\nCost: ")
        example = f"Example: `choral.fit(build, (x, y), choral.recipes.{self.build.__name__}(epochs=60))`."
        return "\n\n".join(filter(None, [head, "Args:\n" + textwrap.indent("\n".join(lines), "    "), after, example]))

    @property
    def summary(self) -> str:
        """The first line of the builder's docstring."""
        return (inspect.getdoc(self.build) or "").splitlines()[0]

    @property
    def paper(self) -> str:
        """The reference in its module's docstring, or an empty string."""
        text = inspect.getdoc(sys.modules[self.build.__module__]) or ""
        _, _, reference = text.partition("Reference: ")
        return " ".join(reference.split("\n\n")[0].split())

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The builder's arguments."""
        return dict(inspect.signature(self.build).parameters)


def _explained(doc: str) -> dict[str, str]:
    r"""Return a docstring's description of each argument.

    >>> _explained("Args:\n    a, b: two\n        numbers.\n\nMore.")
    {'a': 'two numbers.', 'b': 'two numbers.'}
    """
    block = textwrap.dedent(doc.partition("Args:\n")[2].partition("\n\n")[0])
    entries = [entry.partition(": ") for entry in re.sub(r"\n +", " ", block).splitlines()]
    return {name: text for names, _, text in entries for name in names.split(", ")}


def _kinds(value: Any) -> Iterator[type]:
    match value:
        case Value():
            yield type(value)
            yield from _kinds(tuple(vars(value).values()))
        case tuple():
            for part in value:
                yield from _kinds(part)


METHODS: dict[str, Method] = {
    "single": Method(single, "independent"),
    "deep_ensemble": Method(deep_ensemble, "independent"),
    "bagged": Method(bagged, "independent"),
    "hyper_ensemble": Method(hyper_ensemble, "independent"),
    "tabpack": Method(tabpack, "independent", depends=True),
    "snapshot": Method(snapshot, "sequential"),
    "fge": Method(fge, "sequential"),
    "horizontal_voting": Method(horizontal_voting, "sequential"),
    "swa": Method(swa, "sequential"),
    "swag": Method(swag, "sequential"),
    "mothernets": Method(mothernets, "sequential"),
    "mc_dropout": Method(mc_dropout, "stochastic"),
    "drop_connect": Method(drop_connect, "stochastic"),
    "prune_and_tune": Method(prune_and_tune, "sparse"),
    "dst": Method(dst, "sparse"),
    "edst": Method(edst, "sparse"),
    "packed": Method(packed, "shared"),
    "batch_ensemble": Method(batch_ensemble, "shared"),
    "mimo": Method(mimo, "shared"),
    "late_phase": Method(late_phase, "shared"),
    "masksembles": Method(masksembles, "shared"),
    "treenet": Method(treenet, "shared"),
    "tabm": Method(tabm, "shared"),
    "tabm_mini": Method(tabm_mini, "shared"),
    "emp": Method(emp, "shared"),
    "ecmp": Method(ecmp, "shared"),
    "anchored": Method(anchored, "bayesian"),
    "sequential_anchored": Method(sequential_anchored, "bayesian"),
    "bnn": Method(bnn, "bayesian", depends=True),
    "bnn_sequential": Method(bnn_sequential, "bayesian", depends=True),
    "ssbnn": Method(ssbnn, "bayesian", depends=True, for_few=_FEW_NODES),
    "sebays_freeze": Method(sebays_freeze, "bayesian", depends=True, for_few=_FEW_NODES),
    "sebays_no_freeze": Method(sebays_no_freeze, "bayesian", depends=True, for_few=_FEW_NODES),
    "rank1_bnn": Method(rank1_bnn, "bayesian"),
}


def recipe_of(given: Any) -> Recipe:
    """Return a recipe as it is, or the default recipe of a method's name."""
    match given:
        case Recipe():
            return given
        case str():
            return make(given)
    called = getattr(given, "__name__", None)
    if called in METHODS:
        raise InputError(f"recipe is the function {called} itself; call it: choral.recipes.{called}(epochs=60).")
    if hasattr(given, "shape"):
        raise InputError("recipe is an array; give inputs and targets as one pair: fit(build, (x, y), recipe).")
    raise InputError(
        f"recipe is {given!r}; give a Recipe such as choral.recipes.snapshot(epochs=60), or a method's name."
    )


def make(name: str, **options: Any) -> Recipe:
    """Return the recipe of a method by name; options that are None keep their defaults.

    >>> make("snapshot", epochs=30, members=3).members
    3
    """
    if not isinstance(name, str) or name not in METHODS:
        raise InputError(f"there is no method '{name}'; known: {', '.join(METHODS)}.{did_you_mean(str(name), METHODS)}")
    return METHODS[name].call(**{option: value for option, value in options.items() if value is not None})


def __getattr__(name: str) -> Any:
    if name in METHODS:
        return globals().setdefault(name, METHODS[name].call)
    raise AttributeError(no_attribute("choral.recipes", name, METHODS))


def __dir__() -> list[str]:
    return [*METHODS]


# `__getattr__` gives them when they are first used: the help of all methods takes longer than importing them
for _name in METHODS:
    del globals()[_name]
