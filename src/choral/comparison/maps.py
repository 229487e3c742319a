"""Maps of function space: members as points in a plane, by what they predict, and the paths training took."""

from itertools import count
from typing import Any

import torch
from torch import Tensor

from choral.ensemble.ensemble import Ensemble
from choral.plan.phases import Collect
from choral.plan.walk import Place, Visitor, walk


def pca(members: dict[str, Tensor]) -> dict[str, Any]:
    """Return two coordinates for each member of several ensembles: the plane in which they differ most.

    Args:
        members: ensemble name -> (member, value), values of all on the same rows.

    Returns a dict: points (name -> [[x, y], ...]) and explained (the share of all variance along each axis).

    >>> found = pca({"a": torch.tensor([[0.0, 0.0], [3.0, 0.0]]), "b": torch.tensor([[6.0, 0.0]])})
    >>> [[abs(x) for x, _ in p] for p in found["points"].values()], found["explained"]
    ([[3.0, 0.0], [3.0]], [1.0, 0.0])
    """
    values = torch.cat([v.double() for v in members.values()])
    centered = values - values.mean(0)
    _, sizes, axes = torch.linalg.svd(centered, full_matrices=False)
    signs = torch.sign(axes.gather(1, axes.abs().argmax(1, keepdim=True)))  # the same plane whatever the library's sign
    places = torch.zeros(len(values), 2, dtype=torch.float64)
    kept = min(2, len(axes))
    places[:, :kept] = centered @ (axes * signs)[:kept].T
    shares = torch.zeros(2, dtype=torch.float64)
    total = float(sizes.square().sum())
    if total > 1e-20:
        shares[:kept] = sizes[:kept].square() / total
    return {"points": _by_name(members, places), "explained": [round(float(s), 6) for s in shares]}


def tsne(members: dict[str, Tensor]) -> dict[str, Any] | None:
    """Return t-SNE coordinates of members as in `pca`, or None for fewer than 8 members, too few to mean anything."""
    values = torch.cat([v.double() for v in members.values()])
    if len(values) < 8:
        return None
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(values) - 1) / 3)
    places = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(values.numpy())
    return {"points": _by_name(members, torch.as_tensor(places))}


def _by_name(members: dict[str, Tensor], places: Tensor) -> dict[str, list[list[float]]]:
    parts = places.split([len(v) for v in members.values()])
    return {n: [[float(f"{float(v):.6g}") for v in row] for row in part] for n, part in zip(members, parts)}


def chains(ensemble: Ensemble) -> list[list[int]]:
    """Return the runs of members that training passed through one after the other, by their place in predictions.

    Members of one chain come from one branch of the plan without a new start in between (snapshots, for example).
    Members of a joint network are followed one by one. Predictions of selected or stochastic members have none.
    """
    structure = ensemble.recipe.structure
    if structure.draws > 1 or any(type(v).__name__ == "MemberSelection" for v in ensemble.posthoc):
        return []
    found: dict[tuple[Place, int, int], list[int]] = {}
    numbers = count()

    def collect(phase: Collect, place: Place, starts: int) -> int:
        network = next(numbers)
        for inner in range(structure.members):
            found.setdefault((place.begun, starts, inner), []).append(network * structure.members + inner)
        return starts

    walk(ensemble.recipe.plan, 0, Visitor(start=lambda phase, place, starts: starts + 1, collect=collect))
    return [line for line in found.values() if len(line) > 1]
