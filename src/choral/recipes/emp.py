"""EMP and ECMP: patched layers hold K components, and each forward pass draws one for each layer, or for each scalar.

Reference: Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
arXiv:1905.09453, Equations 4 and 5.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from choral.base.errors import InputError
from choral.layers.bayesian.patched import Mixture
from choral.objectives.penalties import L2
from choral.plan import Adam, Part, Phase, RecalibrateDraws, seq
from choral.plan.phases import opened
from choral.recipes.recipe import Combine, Recipe, arguments_of, joint
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, too_few
from choral.structures import Patched

PAPER = Training(lr=0.001, optimizer=Adam(), batch_size=256, schedule="constant")


def emp(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    components: int = 5,
    draws: int = 50,
    norms: bool = True,
    output: bool = True,
    layers: tuple[str, ...] = (),
    mixtures: Mapping[str, Mixture] = {},
    learned: bool = False,
    precision: float | None = None,
    bias_precision: float | None = None,
    alternations: int = 0,
    statistics: Literal["draw", "shared"] = "draw",
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network whose normalization and output layers are drawn from K components in every pass.

    Cost: the training of one network; prediction takes `draws` passes, which share the layers before the first patched one.

    Args:
        layers: name patterns of further layers to patch.
        mixtures: other mixtures of patched layers, by name pattern (the first that matches). The authors propose ECMP or dropout for
            linear layers, and a component at zero besides the K (`Mixture(zero=)`).
        precision: prior precision of the penalty of Equation 6; None uses the optimizer's weight decay instead.
        bias_precision: prior precision of biases and shifts (rho in the paper); by default that of weights.
        alternations: rounds of coordinate descent (appendix C.2), which train the shared weights alone, then the components alone; 0
            trains all together.
        statistics: BatchNorm statistics at prediction: 'draw' estimates them for each draw after training (on 1,024 rows), 'shared' uses
            the running ones.
    """
    return _patched("emp", "layer", **locals())


@arguments_of(emp)
def ecmp(**options: Any) -> Recipe:
    """Like EMP, but every scalar of a patched layer draws its own component.

    Args are those of `emp`.

    Cost: the training of one network; prediction takes `draws` passes.
    """
    return _patched("ecmp", "scalar", **options)


def _patched(
    name: str,
    assignment: Literal["layer", "scalar"],
    *,
    components: int,
    layers: tuple[str, ...],
    mixtures: Mapping[str, Mixture],
    learned: bool,
    precision: float | None,
    bias_precision: float | None,
    alternations: int,
    pretrained: bool,
    **options: Any,
) -> Recipe:
    options["mixture"] = Mixture(components=components, assignment=assignment, learned=learned)
    after = (RecalibrateDraws(),) if options["statistics"] == "draw" else ()
    if precision is None and bias_precision is not None:
        raise InputError(f"{name}: bias_precision is {bias_precision}, but precision is not given; give both.")
    if precision is not None and any(mixture.zero for mixture in mixtures.values()):
        raise InputError(f"{name}: the penalty of `precision` has no component at 0; leave precision out, or zero=.")
    penalties = () if precision is None else (L2(precision=precision, bias_precision=bias_precision),)
    start: dict[str, Any] = {"pretrained": pretrained, "keep_weights": pretrained, "mixtures": tuple(mixtures.items())}
    recipe = joint(name, Patched, include=layers, after=after, penalties=penalties, own=PAPER, **start, **options)
    if not alternations:
        return recipe
    first, _, *rest = opened(recipe.plan)
    turns = _turns(settings_of(options["training"], PAPER), recipe.epochs, alternations)
    return replace(recipe, plan=seq(first, *turns, *rest))


def _turns(training: Training, epochs: int, times: int) -> list[Phase]:
    if epochs < 2 * times:
        raise too_few(epochs, f"{times} alternations of 2 epochs", 2 * times)
    components = ("*patches.*", "*mixing")
    held = [tuple((name, 0.0) for name in components), (*((name, 1.0) for name in components), ("*", 0.0))]
    ends = [round(turn * epochs / (2 * times)) for turn in range(2 * times + 1)]
    phases: list[Phase] = []
    for turn, (start, end) in enumerate(itertools.pairwise(ends)):
        one = replace(training, optimizer=replace(training.optimizer, rates=held[turn % 2]))
        memory = {"memory": "carried", "least_steps": FEW_STEPS} if turn else {}
        phases.append(one.phase(end - start, Part(training.full(), start / epochs, end / epochs), **memory))
    return phases
