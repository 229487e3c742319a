"""Members of several ensembles as one ensemble, whatever structure they were trained in."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from choral import models
from choral.base import rng
from choral.base.errors import ConversionError
from choral.base.types import Build
from choral.calibration import StackingWeights
from choral.engine.blueprint import described, state_of
from choral.engine.store import MemberStore
from choral.ensemble.ensemble import Ensemble
from choral.plan import Collect, Start, fork, seq
from choral.recipes.recipe import Recipe

_CLOSE = 1e-3  # of their spread, by which outputs of a member may differ from those it had among its siblings


def joined(
    ensembles: Sequence[Ensemble],
    weights: Sequence[float],
    *,
    name: str,
    x: Any = None,
    outputs: Tensor | None = None,
    info: dict[str, Any] | None = None,
) -> Ensemble:
    """Return the ensemble of chosen members, each a plain network, with their weights.

    Args:
        ensembles: of the same task, in a structure without draws.
        weights: one for each member of each ensemble in turn, 0 for those left out.
        name: what the ensemble is called.
        x, outputs: some inputs and what all members say about them (member, batch, ...): members that say something else when they
            stand alone are refused.
        info: what is known about the whole.
    """
    places = [(e, i) for e in ensembles for i in range(e.members)]
    chosen = [number for number, weight in enumerate(weights) if weight]
    store, kinds, builds = MemberStore(), dict[str, int](), list[Build | nn.Module]()
    for place, number in enumerate(chosen):
        ensemble, index = places[number]
        network = ensemble.member(index)
        build, kind = _build_of(ensemble, network)
        if kind not in kinds:
            kinds[kind] = len(builds)
            builds.append(build)
        store.put(place, state_of(network).having(form={"network": kinds[kind]} if kinds[kind] else None))
    first, member = ensembles[0], seq(Start(), Collect())
    recipe = Recipe(
        name=name,
        plan=member if len(chosen) == 1 else fork(len(chosen), member),
        combine=first.recipe.combine,
    )
    found = Ensemble(
        tuple(builds) if len(builds) > 1 else builds[0],
        recipe,
        first.likelihood,
        store,
        len(chosen),
        inputs=first._inputs,
        interface=first._interface,
        table=first.table,
        info=info,
    )
    if outputs is not None:
        _check_same(found._outputs_once(x), outputs[chosen])
    shares = [weights[number] for number in chosen]
    if len(set(shares)) == 1:
        return found
    return found.with_posthoc(StackingWeights(weights=tuple(share / sum(shares) for share in shares)))


def _build_of(ensemble: Ensemble, network: nn.Module) -> tuple[Build | nn.Module, str]:
    """Return what builds a member's network, and a text that is the same for networks of one kind."""
    spec = models.spec_of(network)
    with rng.seeded(0, "look"):
        if spec is not None and _shapes(models.rebuild(spec)) == _shapes(network):
            return lambda: models.rebuild(spec), repr(spec)
        plain = ensemble._built()
    if not isinstance(ensemble._build, tuple) and described(plain) == described(network):
        return ensemble._build, described(plain)
    return network, described(network)


def _shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {n: tuple(t.shape) for n, t in (*network.named_parameters(), *network.named_buffers())}


def _check_same(alone: Tensor, among: Tensor) -> None:
    spread = among.std(1, keepdim=True).clamp_min(1e-6) if among.shape[1] > 1 else torch.ones_like(among)
    far = ((alone - among) / spread).abs().flatten(1).amax(1) > _CLOSE
    if bool(far.any()):
        raise ConversionError(
            f"member {int(far.nonzero()[0])} predicts something else as a network of its own than among the others of its structure; choose "
            "a method whose members stand alone, such as deep_ensemble."
        )
