"""Ensemble: members in, predictions out; saved and loaded without pickle."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from choral import corrections, draws, models, passes, rng, tree
from choral.data.inputs import Transform, prepare
from choral.data.sources import as_inputs
from choral.engine.blueprint import Blueprint
from choral.engine.store import MemberStore
from choral.engine.tracing import record
from choral.errors import InputError
from choral.layers import pointwise
from choral.objectives.likelihoods import Categorical, GaussianLikelihood, Likelihood
from choral.plan.state import State
from choral.prediction import Classification, Prediction, Regression
from choral.recipe import Recipe
from choral.saving import save_file
from choral.types import Build
from choral.values import Value

_STACKED = 1 << 26  # parameters kept stacked in memory, at most
_BLOCK = 1 << 17  # numbers of one layer of all stacked members, at most: they stay in the processor's cache
_RECORDED = 1 << 20  # parameters of stacked members whose operations are recorded, at most: each record holds a copy
_RECORDED_INPUT = 1 << 18  # numbers in a chunk that is recorded, at most: recording holds all results at once
_RECORDS = 32  # records kept, of the shapes met last
_PASSED_ROWS = 128  # points of passes that are mapped together, at most
_PASSED = 1 << 22  # numbers of one layer of all passes that are mapped together, at most


@dataclass
class _Team:
    """Members of equal shapes; stacked (params, buffers, draw words) when they are evaluated together."""

    numbers: list[int]
    form: dict[str, Any] | None
    stacked: tuple[Any, Any, Tensor] | None = None
    rows: int = 1024  # evaluated at once
    records: bool = False  # whether operations are recorded
    passes: int = 0  # mapped together; 0 before the first input is seen
    recorded: dict[Any, Callable[[Tensor], Tensor]] = field(default_factory=dict)


class Ensemble:
    """Trained members and everything needed to predict with them.

    Made by `choral.fit` and `choral.load`.
    """

    def __init__(
        self,
        build: Build | nn.Module,
        recipe: Recipe,
        likelihood: Likelihood,
        store: MemberStore,
        count: int,
        *,
        inputs: tuple[Transform, ...] = (),
        table: dict[str, Any] | None = None,
        info: dict[str, Any] | None = None,
        posthoc: tuple[Value, ...] = (),
    ):
        self.recipe, self.likelihood, self.inputs, self.table = recipe, likelihood, inputs, table
        self.info = info or {}
        self.posthoc = corrections.checked(posthoc, task=self.task)
        self._store, self._count = store, count
        self.networks = count
        self._kept: list[_Team] | None = None
        self._blueprint = Blueprint(build, recipe.structure, device=torch.device("cpu"), images=False)

    @property
    def task(self) -> Literal["classification", "regression"]:
        """What it predicts."""
        return "classification" if isinstance(self.likelihood, Categorical) else "regression"

    @property
    def members(self) -> int:
        """Number of members."""
        return self._count * self.recipe.structure.members

    def states(self) -> Iterator[State]:
        """Yield the state of each collected network."""
        return (self._store.get(i) for i in range(self._count))

    @property
    def parameters(self) -> int:
        """Stored parameters of all members; masked ones do not count."""
        total = 0
        for state in self.states():
            mask = state.slots.get("mask", {})
            total += sum(int(mask[n].sum()) if n in mask else p.numel() for n, p in state.params.items())
        return total

    def network(self, index: int = 0) -> nn.Module:
        """Return a joint network holding collected weights, in evaluation mode."""
        return pointwise.unguard(copy.deepcopy(self._blueprint.load(self._store.get(index)))).eval()

    def member(self, index: int) -> nn.Module:
        """Return one member as a plain network of its own, in evaluation mode."""
        if not 0 <= index < self.members:
            raise InputError(f"member {index} does not exist; this ensemble has members 0 to {self.members - 1}.")
        which, inside = divmod(index, self.recipe.structure.members)
        return self.recipe.structure.member(self.network(which), inside).eval()

    def outputs(self, x: Any, *, batch_size: int = 1024) -> Tensor:
        """Return the raw outputs of every member (member * draws, batch, ...)."""
        ready = as_inputs(x)
        teams = self._teams()
        if len(teams) == 1:
            return self._of_team(teams[0], ready, batch_size).flatten(0, 1)
        found: dict[int, Tensor] = {}
        for team in teams:
            found |= dict(zip(team.numbers, self._of_team(team, ready, batch_size)))
        return torch.cat([found[i] for i in range(self._count)])

    def _of_team(self, team: "_Team", x: Tensor, size: int) -> Tensor:
        """Return the outputs of a team (network, member * draws, batch, ...), mapped as far as the network can be."""
        if not team.passes:
            self._make_room(team, x)
        try:
            return self._evaluated(team, x, size)
        except (RuntimeError, NotImplementedError, ValueError):
            if team.passes == 1:  # a wrong input, which says nothing about the next one
                team.passes = 0
                raise
            team.passes = 1
            return self._of_team(team, x, size)

    def _evaluated(self, team: "_Team", x: Tensor, size: int) -> Tensor:
        if team.stacked is not None:
            try:
                return self._stacked(team, x, size)
            except (RuntimeError, NotImplementedError, ValueError):
                # a wrong input fails here too, in plain words; what does not fail is a network that cannot be mapped
                alone = torch.stack(list(self._one_by_one(team, x, size)))
                team.stacked = None
                return alone
        return torch.stack(list(self._one_by_one(team, x, size)))

    def _teams(self) -> list["_Team"]:
        """Return the members in teams of equal shapes; small networks stay stacked for the next call."""
        if self._kept is not None:
            return self._kept
        groups: dict[Any, list[int]] = {}
        for i, state in enumerate(self.states()):
            groups.setdefault((tree.signature(state.params), repr(state.form)), []).append(i)
        teams = []
        for numbers in groups.values():
            form = self._store.get(numbers[0]).form
            network = self._blueprint.network(form)
            small = len(numbers) * sum(p.numel() for p in network.parameters()) <= _STACKED
            looped = any(isinstance(m, passes.LOOPED) for m in network.modules())
            looped = looped or any(p.dim() > 3 for p in network.parameters())  # convolutions of other kinds
            if looped or len(numbers) == 1 or not small:
                teams.append(_Team(numbers, form))
                continue
            states = [self._store.get(i) for i in numbers]
            words = draws.words(*(rng.key(0, "predict", i) for i in numbers)).view(-1, 2)
            stacked = (tree.stack([s.params for s in states]), tree.stack([s.buffers for s in states]), words)
            widest = max((p.shape[0] for p in network.parameters() if p.dim()), default=1)
            rows = max(32, _BLOCK // (len(numbers) * widest))
            records = self.recipe.structure.draws * tree.count(stacked[0]) <= _RECORDED
            teams.append(_Team(numbers, form, stacked, rows, records))
        self._kept = teams
        return teams

    def _make_room(self, team: "_Team", x: Tensor) -> None:
        """Find out how many passes of a team to map together."""
        structure = self.recipe.structure
        team.passes = 1
        if structure.draws == 1:
            return
        network = self._blueprint.load(self._store.get(team.numbers[0])).eval()
        with torch.no_grad():
            each = passes.room(network, 0, lambda: structure.unfold(network(self._feed(x[:1]))), structure.draws)
        stacked = 1 if team.stacked is None else len(team.numbers)
        if each > 1:
            team.rows = min(team.rows, _PASSED_ROWS)
            widest = max(p.shape[0] for p in network.parameters() if p.dim())
            team.passes = max(1, min(each // stacked, _PASSED // (stacked * team.rows * widest)))

    def _feed(self, x: Tensor) -> Tensor:
        return self.recipe.structure.feed(prepare(x, self.inputs, training=False), None)[0]

    def _one_by_one(self, team: "_Team", x: Tensor, size: int) -> Iterator[Tensor]:
        for number in team.numbers:
            network = self._blueprint.load(self._store.get(number)).eval()
            with torch.no_grad() if team.passes > 1 else torch.inference_mode():
                chunks = x.split(min(size, team.rows))
                joined = torch.cat([self._passes(team, network, number, chunk) for chunk in chunks], 1)
            yield joined.clone()

    def _passes(self, team: "_Team", network: nn.Module, number: int, chunk: Tensor) -> Tensor:
        """Return the outputs of all passes of one network (member * draws, batch, ...)."""
        structure, key = self.recipe.structure, rng.key(0, "predict", number)

        def call(draw: int | Tensor) -> Tensor:
            with draws.keyed(key, draw):
                return structure.unfold(network(self._feed(chunk)))

        return passes.together(call, structure.draws, team.passes)

    def _stacked(self, team: "_Team", x: Tensor, size: int) -> Tensor:
        """Return the outputs of a team (network, member * draws, batch, ...)."""
        structure = self.recipe.structure
        assert team.stacked is not None

        params, buffers, words = team.stacked

        def mapped(chunk: Tensor) -> Tensor:
            network = self._blueprint.network(team.form).eval()

            def run(p: Any, b: Any, w: Tensor) -> Tensor:
                def call(draw: int | Tensor) -> Tensor:
                    with draws.keyed(w, draw):
                        return structure.unfold(functional_call(network, (p, b), (self._feed(chunk),)))

                return passes.together(call, structure.draws, team.passes)

            return vmap(run)(params, buffers, words)

        with torch.no_grad():
            parts = []
            rows, records = min(size, team.rows), team.records and team.passes == structure.draws
            for chunk in (x,) if len(x) <= rows else x.split(rows):
                shape = (tuple(chunk.shape), chunk.dtype)
                if records and shape not in team.recorded and chunk.numel() <= _RECORDED_INPUT:
                    self._record(team, shape, mapped, chunk)
                parts.append(team.recorded[shape](chunk) if shape in team.recorded else mapped(chunk))
            return parts[0] if len(parts) == 1 else torch.cat(parts, 2)

    @staticmethod
    def _record(team: "_Team", shape: Any, function: Callable[[Tensor], Tensor], chunk: Tensor) -> None:
        """Record a shape when it is first met, so that equal inputs always take the same way, to the last bit."""
        try:
            team.recorded[shape] = record(function, [chunk])
        except (RuntimeError, NotImplementedError, ValueError, TypeError):
            function(chunk)  # a wrong input fails here too
            team.records = False  # what cannot be recorded is mapped each time
        if len(team.recorded) > _RECORDS:
            del team.recorded[next(iter(team.recorded))]

    def predict(self, x: Any, *, batch_size: int = 1024) -> Prediction:
        """Return the ensemble's prediction for some inputs.

        Args:
            x: inputs as given to fit (arrays or tensors); for an ensemble fitted on a table, what
                `choral.data.tables.encode_inputs(frame, ensemble.table)` makes of its rows, as `choral predict` does.
            batch_size: points evaluated at once.
        """
        return corrections.correct(self._uncorrected(x, batch_size), self.posthoc)

    def _uncorrected(self, x: Any, batch_size: int) -> Prediction:
        outputs = self.outputs(x, batch_size=batch_size)
        if isinstance(self.likelihood, Categorical):
            names = tuple(self.table["classes"]) if self.table and self.table.get("classes") else None
            return Classification(outputs, self.recipe.combine, names=names, learners=self._learners())
        assert isinstance(self.likelihood, GaussianLikelihood)
        means, variances = self.likelihood.moments(outputs)
        if self.table and self.table.get("target_std"):
            scale, shift = self.table["target_std"], self.table["target_mean"]
            means, variances = means * scale + shift, variances * scale**2
        return Regression(means, variances, learners=self._learners())

    def _learners(self) -> tuple[int, ...] | None:
        """Return the member of each row of `outputs`; None if rows are members."""
        structure = self.recipe.structure
        if structure.draws == 1:
            return None
        rows = (
            n * structure.members + m
            for n in range(self._count)
            for _ in range(structure.draws)
            for m in range(structure.members)
        )
        return tuple(rows)

    def with_posthoc(self, *values: Value) -> "Ensemble":
        """Return the same members with these corrections of `choral.posthoc` instead of any there were.

        Predictions apply a member selection, a temperature and stacking weights, and offer conformal sets
        (`prediction.sets`) or intervals (`prediction.conformal_interval`). They are saved with the ensemble.
        """
        import copy

        twin = copy.copy(self)
        twin.posthoc = corrections.checked(values, task=self.task)
        return twin

    def calibrated(self, x: Any, y: Any, *, batch_size: int = 1024, **options: Any) -> "Ensemble":
        """Return the same members with corrections fitted on held-out data (rows no member was trained on).

        Args:
            x: held-out inputs, as given to predict.
            y: their labels or targets.
            batch_size: points evaluated at once.
            options: what to fit, as in `choral.corrections.fit_corrections`: select=4, temperature='ensemble',
                stacking=True, level=0.9.
        """
        return self.with_posthoc(*corrections.fit_corrections(self._uncorrected(x, batch_size), y, **options))

    def save(self, path: str | Path) -> None:
        """Write the whole ensemble into one file: safetensors with a JSON header, nothing that could run."""
        about = {
            "recipe": self.recipe.to_dict(),
            "likelihood": self.likelihood.to_dict(),
            "inputs": [t.to_dict() for t in self.inputs],
            "network": self._spec(),
            "table": self.table,
            "info": self.info,
            "posthoc": [v.to_dict() for v in self.posthoc],
        }
        save_file(Path(path), self.states(), about)

    def _spec(self) -> dict[str, Any] | None:
        with rng.seeded(0, "spec"):
            return models.spec_of(self._blueprint.plain())
