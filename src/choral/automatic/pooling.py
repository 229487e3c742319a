"""From all that was trained to one ensemble: the members that predict held-out points best together.

A log score by few points can prefer members that are sure of themselves, so nothing is taken that is worse than the first candidate in
the point score (squared error, accuracy) of the same points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from choral.automatic.joining import joined
from choral.automatic.jury import Judge
from choral.calibration import bagged_selection
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import settle_noise
from choral.predictions import Predictive

PICKS = 32
_SHARES = (1.0, 0.75, 0.5, 0.25)  # of the selection; the rest is the first candidate
_GAIN = 1e-9
_LEAST = 0.05  # of the weight, below which a whole candidate is not worth its cost
_FEW = 8  # candidates or members, of which every bag may choose from all


@dataclass(frozen=True)
class Pool:
    """Everything that was trained.

    Attributes:
        labels: what each ensemble is called.
        ensembles: in the order they were trained; the first is what is done without a search.
        judge: what they are judged by.
    """

    labels: Sequence[str]
    ensembles: Sequence[Ensemble]
    judge: Judge

    def best(self, reasons: Sequence[str], tried: Sequence[str], seed: int) -> Ensemble:
        """Return the ensemble that the judge prefers.

        Args:
            reasons: what happened until now, in words.
            tried: names of all that was tried.
            seed: root of every draw.
        """
        outputs = [self.judge.outputs(e) for e in self.ensembles]
        prediction = self.ensembles[0]._uncorrected(torch.cat(outputs), networks=sum(map(len, outputs)))
        units = self._units([len(one) for one in outputs])
        shares = self._chosen(prediction, units, seed)
        rows = _spread(units, shares)
        weights = rows if self.judge.apart else self._of_members(shares)
        best = prediction.weighed(rows)
        told = f"{self._told(weights)}; {self.judge.said(best)}"
        about = {"tried": list(tried), "validation": self.judge.score(best), "reasons": [*reasons, told]}
        seen = self.judge.looked_at(self.ensembles[0])
        among = torch.cat([e._outputs_once(seen) for e in self.ensembles])
        made = joined(
            self.ensembles, weights, name="auto", x=seen, outputs=among, info=self._costs(weights) | {"auto": about}
        )
        taken = [i for i, share in enumerate(rows) if share]
        kept = torch.cat(outputs)[taken]
        settle_noise(made, (kept, made.likelihood.read(self.judge.y), self.judge.weights))
        self.judge.finish(made, kept, [rows[i] for i in taken])
        return made

    def _units(self, sizes: Sequence[int]) -> list[list[int]]:
        """Return the rows that count together: each for itself, or those of a candidate."""
        begins = [sum(sizes[:i]) for i in range(len(sizes))]
        if self.judge.apart:
            return [[row] for row in range(sum(sizes))]
        return [list(range(begin, begin + size)) for begin, size in zip(begins, sizes)]

    def _chosen(self, prediction: Predictive, units: list[list[int]], seed: int) -> tuple[float, ...]:
        """Return what each unit counts: one candidate's alike, or a selection mixed with as much of the first as is needed."""
        judge = self.judge
        alone = [self._alone(number, units) for number in range(len(self.ensembles))]
        first = prediction.weighed(_spread(units, alone[0]))
        limit, found, least = judge.point(first), alone[0], judge.score(first)
        values, loss = prediction.blend(prediction.targets(judge.y))
        together = torch.stack([values[rows].mean(0) for rows in units])
        share = 1.0 if len(units) <= _FEW else 0.5
        picked = bagged_selection(together, loss, picks=PICKS, share=share, weights=judge.weights, seed=seed).weights
        picked = picked if judge.apart else _without_crumbs(picked)
        mixed = [tuple(s * a + (1 - s) * b for a, b in zip(picked, alone[0])) for s in _SHARES]
        alike = tuple(sum(each) / len(alone) for each in zip(*alone))
        for shares in (*alone[1:], alike, *mixed):
            tried = prediction.weighed(_spread(units, shares))
            score = judge.score(tried)
            if score < least - _GAIN * (1 + abs(least)) and judge.point(tried) <= limit:
                found, least = shares, score
        return found

    def _alone(self, number: int, units: list[list[int]]) -> tuple[float, ...]:
        """Return what units count by which those of one candidate count alike and others nothing."""
        sizes = [e.members for e in self.ensembles] if self.judge.apart else [1] * len(self.ensembles)
        assert sum(sizes) == len(units)
        return tuple((i == number) / size for i, size in enumerate(sizes) for _ in range(size))

    def _of_members(self, shares: Sequence[float]) -> tuple[float, ...]:
        """Return the weight of each member of each candidate."""
        return tuple(share / e.members for e, share in zip(self.ensembles, shares) for _ in range(e.members))

    def _told(self, weights: Sequence[float]) -> str:
        """Return how many members were taken of each candidate, and with what weight, in words."""
        parts, begin = [], 0
        for label, ensemble in zip(self.labels, self.ensembles):
            own = weights[begin : begin + ensemble.members]
            begin += ensemble.members
            if sum(own):
                parts.append((sum(w > 0 for w in own), len(own), f"{label}", sum(own)))
        if len(self.ensembles) == 1:
            return f"{self.labels[0]}, is taken"
        if len(parts) == 1 and parts[0][0] == parts[0][1]:
            return f"{parts[0][2]}, alone is best; no mixture gains in log score without losing in point score"
        taken = ", ".join(f"{some} of {label} ({share:.0%})" for some, _, label, share in parts)
        return f"selection from all {len(weights)} members: {taken}"

    def _costs(self, weights: Sequence[float]) -> dict[str, Any]:
        """Return what all candidates cost together, as a run says it of itself."""
        infos = [e.info for e in self.ensembles]
        names = {name for info in infos for name in info["counted"]}
        counted = {name: sum(info["counted"].get(name, 0) for info in infos) for name in sorted(names)}
        each = [
            (e.info["parameters"] / e.members, e.info["predict_flops"] / e.members)
            for e in self.ensembles
            for _ in range(e.members)
        ]
        taken = [one for one, weight in zip(each, weights) if weight]
        ended = [info["ended"] for info in infos if "ended" in info]
        return ({"ended": ended[0]} if ended else {}) | {
            "stopped": [one for info in infos for one in info.get("stopped", [])],
            "counted": counted,
            "parameters": round(sum(p for p, _ in taken)),
            "predict_flops": sum(f for _, f in taken),
            "networks": len(taken),
            "outputs": infos[0]["outputs"],
            "seconds": sum(info["seconds"] for info in infos),
        }


def _spread(units: Sequence[Sequence[int]], shares: Sequence[float]) -> tuple[float, ...]:
    """Return the weight of each row: the shares of the units, spread over their rows."""
    found = {row: share / len(rows) for rows, share in zip(units, shares) for row in rows}
    return tuple(found[row] for row in range(len(found)))


def _without_crumbs(shares: Sequence[float]) -> tuple[float, ...]:
    kept = [share if share >= _LEAST else 0.0 for share in shares]
    return tuple(share / sum(kept) for share in kept)
