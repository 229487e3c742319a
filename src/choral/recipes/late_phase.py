"""Late-phase weights: members share most of training, and get their own rank-one factors for the last part of it.

Reference: von Oswald et al., "Neural networks with late-phase weights", ICLR 2021, arXiv:2007.12927, Algorithm 1 with the
rank-one (BatchEnsemble) late-phase model.
"""

from dataclasses import dataclass, replace

import torch

from choral.base.values import Inside, Positive
from choral.plan import Collect, Context, Operator, Part, Reset, State, seq
from choral.recipes.recipe import Combine, Recipe
from choral.recipes.training import FEW_STEPS, Paper, Training, settings_of, too_few, total_epochs
from choral.structures import BatchEnsemble

FACTORS = BatchEnsemble.undecayed
"""Patterns of the rank-one factors."""


@dataclass(frozen=True, kw_only=True)
class SpreadFactors(Operator):
    """Add Gaussian noise of standard deviation `spread` to the rank-one factors of all members."""

    spread: float = 0.1

    def apply(self, state: State, context: Context) -> State:
        noise = context.generator("spread")
        ends = tuple(pattern.removeprefix("*") for pattern in FACTORS)
        moved = {
            name: p + self.spread * torch.randn(p.shape, generator=noise).to(p)
            for name, p in state.params.items()
            if name.endswith(ends)
        }
        return state.having(params=state.params | moved, memory={})


def late_phase(
    *,
    epochs: int | None = None,
    budget: int | None = None,
    members: int = 5,
    start: Inside = 0.6,
    spread: Positive = 0.1,
    combine: Combine = "probs",
    training: Training | Paper = Training(),
) -> Recipe:
    """One training run whose last part has several members, which share all weights up to rank-one factors.

    Cost: the parameters of one network; each batch is run through all `members`.

    Args:
        start: share of training after which members get their own factors (T0); before, they are one network, up to dropout.
        spread: standard deviation of the noise on the factors, which start at 1.

    Differs from the paper: members are kept and their predictions averaged, while the paper averages their weights at the end; and every
    member reads each batch, while the paper gives each its own.
    """
    total, settings = total_epochs(epochs, budget), settings_of(training)
    first = round(start * total)
    if not 0 < first < total:
        raise too_few(total, "a training and its late phase of at least 1 epoch each", 2)
    held = replace(settings.optimizer, rates=(*((name, 0.0) for name in FACTORS), *settings.optimizer.rates))
    early = replace(settings, optimizer=held).phase(first, Part(settings.full(), 0.0, first / total))
    late = settings.phase(
        total - first, Part(settings.full(), first / total, 1.0), memory="carried", least_steps=FEW_STEPS
    )
    plan = seq(Reset(), early, SpreadFactors(spread=spread), late, Collect())
    return Recipe(name="late_phase", plan=plan, structure=BatchEnsemble(members=members, spread=0.0), combine=combine)
