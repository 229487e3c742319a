"""EMP and ECMP: patched layers hold K components, and each forward pass draws one for each layer, or for each scalar.

Reference: Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
arXiv:1905.09453, Equations 4 and 5.
"""

from typing import Any, Literal

from choral.base.errors import InputError
from choral.layers.bayesian.patched import Mixture
from choral.objectives.penalties import PatchedL2
from choral.plan import RecalibrateDraws
from choral.recipes.recipe import Combine, Recipe, arguments_of, joint
from choral.recipes.training import Paper, Training
from choral.structures import Patched


def emp(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    components: int = 5,
    draws: int = 50,
    norms: bool = True,
    output: bool = True,
    layers: tuple[str, ...] = (),
    learned: bool = False,
    precision: float | None = None,
    bias_precision: float | None = None,
    statistics: Literal["draw", "shared"] = "draw",
    pretrained: bool = False,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One network whose normalization and output layers are drawn from K components in every pass.

    Cost: the training of one network; prediction takes `draws` passes, of which the layers before the first patched one are shared.

    >>> emp(epochs=60).epochs
    60

    Args:
        layers: name patterns of further layers to patch.
        precision: prior precision of the penalty of Equation 6; None leaves regularization to the optimizer's weight decay.
        bias_precision: prior precision of biases and shifts (rho in the paper); that of weights if None.
        statistics: BatchNorm statistics at prediction: estimated again for each draw after training (on 1,024 points, a forward pass
            of each draw), or the running ones, 'shared' by all draws.
    """
    return _patched("emp", "layer", **locals())


@arguments_of(emp)
def ecmp(**options: Any) -> Recipe:
    """Like EMP, but every scalar of a patched layer draws its own component.

    Args are those of `emp`.

    Cost: the training of one network; prediction takes `draws` passes.

    >>> ecmp(epochs=60).epochs
    60
    """
    return _patched("ecmp", "scalar", **options)


def _patched(
    name: str,
    assignment: Literal["layer", "scalar"],
    *,
    components: int,
    layers: tuple[str, ...],
    learned: bool,
    precision: float | None,
    bias_precision: float | None,
    pretrained: bool,
    **options: Any,
) -> Recipe:
    options["mixture"] = Mixture(components=components, assignment=assignment, learned=learned)
    after = (RecalibrateDraws(),) if options["statistics"] == "draw" else ()
    if precision is None and bias_precision is not None:
        raise InputError(f"{name}: bias_precision is {bias_precision}, but precision is not given; give both.")
    penalties = () if precision is None else (PatchedL2(precision=precision, bias_precision=bias_precision),)
    start: dict[str, Any] = {"pretrained": pretrained, "keep_weights": pretrained}
    return joint(name, Patched, include=layers, after=after, penalties=penalties, **start, **options)
