"""Ensemble: trained members that predict, evaluate, save and export."""

import copy
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from choral.base import batches
from choral.base.batches import Batch
from choral.base.devices import usable
from choral.base.errors import InputError, NotFiniteError, RunError, explained, no_attribute
from choral.base.interface import Interface, detach
from choral.base.text import html_table, short
from choral.base.types import Builds
from choral.base.values import guarded, is_whole, typed
from choral.calibration import StackingWeights, Temperature, fit_stacking
from choral.calibration.members import Correction
from choral.data.inputs import Transforms, written
from choral.data.sources import as_inputs, as_targets, as_weights, inputs_of, labeled
from choral.data.tensors import arranged, check_same_order, names_of
from choral.deploy.export import export, table_of
from choral.engine.blueprint import Blueprint
from choral.engine.checkpoint import MemberStore, member_tensors
from choral.engine.evaluate import Evaluation
from choral.engine.files import pack_tensors, sweep, write_bytes
from choral.engine.task import Task
from choral.layers.convert import put_back
from choral.layers.kernels import pointwise
from choral.objectives.likelihoods import About, Likelihood
from choral.plan.state import State
from choral.predictions import Prediction, Predictive, scores_of
from choral.recipes.recipe import Recipe
from choral.tables.reading import as_frame, is_frame, rows_of
from choral.tables.table import Table, unit_in_words, with_target


def described(ensemble: "Ensemble") -> str:
    """Return a one-line description: method, members, task, likelihood, scaling and size."""
    named = {"columns left out": "columns left out: {}", "parameters": "{} parameters"}
    return ", ".join(named.get(name, "{}").format(text) for name, text in facts(ensemble).items())


def facts(ensemble: "Ensemble") -> dict[str, str]:
    """Return method, members, task, likelihood, scaling and size by name."""
    draws, info = ensemble.recipe.structure.draws, ensemble.info
    members = f"{ensemble.members} member" + ("" if ensemble.members == 1 else "s")
    left_out = ensemble.table.left_out if ensemble.table is not None else ()
    chosen, shape, rows = info.get("auto"), info.get("outputs"), info.get("validation_rows")
    corrections = ((repr(value), type(value).__name__) for value in ensemble.posthoc)
    task = ensemble.task
    if shape:
        one = len(shape) == 1
        task += f" with {shape[0]} output{'s' * (shape[0] > 1)}" if one else f" with outputs of shape {tuple(shape)}"
    found = {
        "method": f"{ensemble.recipe.name}: {members}" + (f" of {draws} draws each" if draws > 1 else ""),
        "task": task,
        "likelihood": understood_by(ensemble),
        "transforms": ", ".join(map(repr, ensemble._inputs)),
        # weights of many members say nothing at a glance
        "corrections": ", ".join(text if len(text) <= 120 else f"{name}(...)" for text, name in corrections),
        "columns left out": ", ".join(short(n, 20) for n in left_out),
        "chosen": f"chosen from {len(chosen['tried'])} trainings ({chosen['reasons'][-1]})" if chosen else "",
        "validation": f"{rows:,} rows held out for validation" if rows else "",
        "parameters": f"{ensemble._parameters:,}",
    }
    return {name: text for name, text in found.items() if text}


def understood_by(ensemble: "Ensemble") -> str:
    """Return how an ensemble interprets its targets, in a few words, with their unit."""
    said, table = said_of(ensemble.likelihood), ensemble.table
    if table is None or table.task != "regression" or not table.unit:
        return said
    return f"{said}, '{short(table.target)}' {unit_in_words(table.unit)}"


def said_of(likelihood: Likelihood) -> str:
    """Return how a likelihood interprets targets, in a few words.

    >>> from choral.objectives import FixedGaussian
    >>> said_of(FixedGaussian(precision=4.0))
    'FixedGaussian, targets in their own units, noise of standard deviation 0.5'
    """
    said = likelihood.understood()
    return ", ".join([said.pop("likelihood"), *(f"{subject} {words}" for subject, words in said.items())])


def _check_finite(outputs: Tensor) -> None:
    """Raise NotFiniteError for outputs (row, batch, ...) that are NaN or infinite; logits may be minus infinity."""
    if not outputs.is_floating_point() or bool((outputs.flatten(2).sum(2) < math.inf).all()):
        return
    bad = (outputs.isnan() | outputs.isposinf()).flatten(2).any(2)
    rows, members = bad.any(0).nonzero().flatten().tolist(), bad.any(1).nonzero().flatten().tolist()
    if rows:
        raise NotFiniteError(
            f"the outputs of {len(rows)} of {outputs.shape[1]} rows are NaN or infinite (the first: {rows[:5]}; of networks {members[:5]}); "
            "look for huge values in these rows, or for weights that are NaN."
        )


def _checked(values: Sequence[Any], *, kind: type[Predictive]) -> tuple[Correction, ...]:
    """Return corrections in order of application; InputError for two of one kind, or one that does not fit the task."""
    ranked: dict[int, Correction] = {}
    for value in values:
        if not isinstance(value, kind.accepts):
            known = ", ".join(accepted.__name__ for accepted in kind.accepts)
            raise InputError(f"{type(value).__name__} does not apply to {kind.task}; give values of {known}.")
        other = ranked.setdefault(value.rank, value)
        if other is not value:
            raise InputError(
                f"{type(other).__name__} and {type(value).__name__} are two corrections of one kind; give one."
            )
    return tuple(ranked[i] for i in sorted(ranked))


def correct(prediction: Predictive, values: Sequence[Correction]) -> Predictive:
    """Return a prediction with corrections applied in order; conformal rules are stored in it for `sets` or `interval`."""
    for value in values:
        prediction = value.corrected(prediction)
    return prediction


def fit_corrections(
    prediction: Predictive,
    y: Any,
    *,
    temperature: Literal["ensemble", "member"] | None = None,
    stacking: bool = False,
    level: float | None = None,
    conformal: str | None = None,
    seed: int = 0,
) -> tuple[Correction, ...]:
    """Return corrections fitted one after the other, each on the result of those before; one temperature if none is named.

    Args:
        prediction: an uncorrected prediction of held-out rows.
        y: labels or targets of those rows.
        temperature: divide logits by one number for the 'ensemble' or one for each 'member' (classification).
        stacking: fit weights of members that maximize the log score of their mixture.
        level: nominal coverage of conformal sets or intervals; None fits none.
        conformal: one of the prediction's `rules`, by default the first: 'aps' or 'raps' (with penalty 0.01 beyond 2 classes) for
            classes; 'scaled' (by the predicted standard deviation), 'residual' or 'quantile' (the mixture's own interval, corrected)
            for regression.
        seed: seed of randomized sets of classes.
    """
    found: list[Correction] = []
    targets = prediction.targets(y)

    def add(value: Correction) -> None:
        nonlocal prediction
        found.append(value)
        prediction = value.corrected(prediction)

    if conformal is not None and level is None:
        raise InputError(f"conformal is {conformal!r}, but there is no level; give level=0.9, for example.")
    if not stacking and temperature is None and level is None:
        if Temperature not in prediction.accepts:
            raise InputError(
                f"{prediction.task} has no temperature; give level=0.9 for intervals that cover 90 %, "
                "or stacking=True for weights of members."
            )
        temperature = "ensemble"
    if stacking:
        prediction.check_mixture()
    if temperature is not None:
        add(prediction.fit_temperature(targets, per=temperature))
    if stacking:
        add(fit_stacking(prediction.log_scores(targets)))
    if level is not None:
        add(prediction.fit_conformal(targets, level=level, rule=conformal, seed=seed))
    return tuple(found)


Precision = Literal["fp32", "bf16", "fp16", "fp64"]
_PLAIN = Interface()
_PRECISIONS: dict[str, torch.dtype | None] = dict.fromkeys(("fp32", "bf16", "fp16")) | {"fp64": torch.float64}
"""What networks become."""


class Ensemble:
    """Trained members with all that is needed to predict, made by `choral.fit` or `choral.load`."""

    def __init__(
        self,
        build: Builds,
        recipe: Recipe,
        likelihood: Likelihood,
        store: MemberStore,
        count: int,
        *,
        inputs: Transforms = (),
        interface: Interface = _PLAIN,
        table: Table | None = None,
        info: dict[str, Any] | None = None,
        posthoc: tuple[Correction, ...] = (),
    ):
        self.recipe, self.likelihood, self.table = recipe, likelihood, table
        self.info = info or {}
        self._inputs = inputs
        self.posthoc = _checked(posthoc, kind=likelihood.prediction)
        self._store, self._count = store, count
        self._build = build
        if likelihood.target is not None:
            interface = replace(interface, target=likelihood.target)
        self._interface = interface
        self._blueprint = Blueprint(
            build, recipe.structure, device=torch.device("cpu"), images=False, interface=interface
        )
        self._out_of_fold: Any = None  # of a fit with folds, `choral.ensemble.held_out.OutOfFold`
        self._floats: torch.dtype | None = None
        self._evaluations: dict[Any, Evaluation] = {}

    @property
    def task(self) -> str:
        """The task, such as 'classification' or 'regression'."""
        return self.likelihood.prediction.task

    @property
    def members(self) -> int:
        """Number of members."""
        return self._count * self.recipe.structure.members

    def __len__(self) -> int:
        """Return the number of members."""
        return self.members

    def __iter__(self) -> Iterator[nn.Module]:
        """Yield every member as a plain network of its own."""
        return (self.member(i) for i in range(self.members))

    def __getitem__(self, index: int) -> nn.Module:
        """Return one member as a plain network of its own."""
        return self.member(index if index >= 0 else self.members + index)

    def __repr__(self) -> str:
        return f"Ensemble({described(self)})"

    def _repr_html_(self) -> str:
        return html_table(list(facts(self).items()), "Ensemble", header=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy, without what was prepared for predictions."""
        return self.__dict__ | {"_evaluations": {}}

    def states(self) -> Iterator[State]:
        """Yield the state of each collected network."""
        return (self._store.get(i) for i in range(self._count))

    @property
    def _parameters(self) -> int:
        """Stored parameters of all members; masked ones do not count."""
        return sum(state.stored for state in self.states())

    def _network(self, index: int = 0) -> nn.Module:
        """Return a joint network holding collected weights, in evaluation mode."""
        return pointwise.unguard(self._blueprint.holding(self._store.get(index))).requires_grad_()

    @guarded
    def member(self, index: int) -> nn.Module:
        """Return one member as a plain network in evaluation mode, with the inputs and outputs of your network.

        Its outputs are logits, or numbers in standardized units if the targets were standardized.
        """
        if not is_whole(index, 0) or index >= self.members:
            raise InputError(f"member {index} does not exist; this ensemble has members 0 to {self.members - 1}.")
        which, inside = divmod(index, self.recipe.structure.members)
        return put_back(detach(self.recipe.structure.member(self._network(which), inside))).eval()

    @guarded
    def outputs(
        self,
        x: Any,
        *,
        batch_size: int = 1024,
        device: str = "auto",
        precision: Precision = "fp32",
        threads: int | None = None,
    ) -> Tensor:
        """Return the raw outputs of every member (member * draws, batch, ...); arguments as in `predict`."""
        return self._outputs(x, batch_size, device, precision, threads)

    if not TYPE_CHECKING:  # a type checker reports names that are not here

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise AttributeError(no_attribute("an ensemble", name, [n for n in dir(self) if not n.startswith("_")]))

    @guarded
    def _outputs_once(self, x: Any, *, batch_size: int = 1024) -> Tensor:
        """Return `outputs` for a single call, up to rounding: nothing is prepared for later calls."""
        ready = self._read(x, "fp32")
        return self._evaluation_for(ready, "cpu", "fp32").once(ready, batch_size=batch_size)

    def _outputs(self, x: Any, batch_size: int, device: str, precision: str, threads: int | None) -> Tensor:
        x = self._arranged(x)
        parts = inputs_of(x)
        if len(parts) > 1 or parts[0] is not x:
            chosen = map(self._interface.chosen, parts)
            each = [self._outputs(part, batch_size, device, precision, threads) for part in chosen]
            if len({part.shape[2:] for part in each}) > 1:
                raise InputError(
                    "the batches of x give outputs of different shapes, which do not make one prediction; predict them one by one."
                )
            return torch.cat(each, 1)
        ready = self._read(x, precision)
        with explained(lambda error: InputError(self._interface.why_not_predicted(ready, error))):
            found = self._evaluation_for(ready, device, precision)
            outputs = found.outputs(ready, batch_size=batch_size, threads=threads)
        _check_finite(outputs)
        return outputs

    def _read(self, x: Any, precision: str) -> Batch:
        """Return inputs as a batch in the dtype of the networks; InputError if they differ in structure from those in `fit`."""
        if self._floats is None:
            self._floats = self._blueprint.floats
        floats = _PRECISIONS[precision] or self._floats
        ready = self._interface.in_floats(as_inputs(x, floats), floats)
        self._interface.check(ready)
        return ready

    def _evaluation_for(self, ready: Batch, device: str, precision: str) -> Evaluation:
        """Return the evaluators for such inputs, made once for each device, precision and structure of inputs."""
        where = usable("cpu" if device == "auto" and precision == "fp64" else device)  # MPS has no float64
        images, floats = any(t.dim() == 4 for t in batches.leaves(ready)), _PRECISIONS[precision]
        place = (str(where), precision, images)
        if place not in self._evaluations:
            structure, interface = self.recipe.structure, self._interface
            blueprint = Blueprint(
                self._build, structure, device=where, images=images, interface=interface, floats=floats
            )
            task = Task(
                blueprint,
                structure,
                self.recipe.objective,
                self.likelihood,
                self._inputs,
                where,
                precision,
                floats=floats or self._blueprint.floats,
            )
            made = Evaluation(task, self._store, self._count, plain=floats is not None)
            self._evaluations.setdefault(place, made)
        return self._evaluations[place]

    def _arranged(self, x: Any) -> Any:
        """Return inputs as in `fit`: a table's rows as numbers, columns of other data frames in the order of `fit`."""
        table = table_of(self)
        if table is None:
            return arranged(x, self._interface.columns)
        x = rows_of(x)
        ready = table.inputs(as_frame(x, "x"), path="x") if is_frame(x) else x
        if names_of(ready):
            raise InputError(
                f"x is a {type(x).__name__}, and the networks read a table as pandas has it; give a pandas data frame, or "
                "ensemble.table.inputs(frame)."
            )
        return arranged(ready, self._interface.columns)

    def _with_targets(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Return inputs, and targets with columns in the order of `fit`: by default those of a table's rows x that have one."""
        table = table_of(self)
        x = x if table is None else rows_of(x)
        if table is not None and is_frame(x):
            x = as_frame(x, "x") if y is not None else with_target(as_frame(x, "x"), table.target, "x")
            y = table.targets(x, path="x") if y is None else table.targets_of(y)
        if y is None:
            raise InputError(
                "y is None; give the labels or targets of x: evaluate(x, y), or a Dataset or DataLoader of pairs."
            )
        check_same_order(x, y)
        return x, arranged(y, self._interface.columns, "y")

    @guarded
    def predict(
        self,
        x: Any,
        *,
        batch_size: int = 1024,
        device: str = "auto",
        precision: Precision = "fp32",
        threads: int | None = None,
    ) -> Prediction:
        """Return the prediction for some inputs. Thread-safe.

        Args:
            x: inputs as given to fit: arrays or tensors, or a dict, tuple or list of them; or a Dataset or DataLoader, whose targets are
                ignored. For an ensemble fitted on a table: a data frame with its columns, the path of a file, or the result of
                `ensemble.table.inputs(frame)`.
            batch_size: largest number of rows evaluated at once.
            device: where to evaluate; 'auto' is CUDA, MPS or the CPU.
            precision: 'fp32'; 'bf16' or 'fp16' by autocast; or 'fp64', which runs networks one by one and in which a prediction changes by
                less than 1e-12 with the other rows.
            threads: threads of torch's operations during the call; by default chosen by the network and the number of rows.
        """
        outputs = self._outputs(x, batch_size, device, precision, threads)
        return Prediction(self._corrected(outputs), self._interface.target)

    def _predictive(self, x: Any, **options: Any) -> Predictive:
        return self._corrected(self.outputs(x, **options))

    def _corrected(self, outputs: Tensor) -> Predictive:
        return correct(self._uncorrected(outputs), self.posthoc)

    @property
    def _numbers(self) -> list[int]:
        """The numbers of its networks in the plan; fewer than planned if the time limit was reached."""
        return list(range(self._count) if self._store.numbers is None else self._store.numbers)

    def _of_networks(self, numbers: Sequence[int]) -> "Ensemble":
        twin = copy.copy(self)
        twin._store, twin._count = self._store.showing(numbers), len(numbers)
        twin.posthoc, twin._out_of_fold, twin._evaluations = (), None, {}
        return twin

    def _uncorrected(self, outputs: Tensor, *, networks: int | None = None) -> Predictive:
        """Return the prediction of raw outputs (row, batch, ...) before corrections, of some of the networks or all."""
        classes = self.likelihood.classes(outputs)
        names = None if self.table is None or classes is None else self.table.names_of(classes)
        about = About(self.recipe.combine, names, self.recipe.structure.owners(networks or self._count))
        return self.likelihood.predict(outputs, about)

    @guarded
    def evaluate(self, x: Any, y: Any = None, *, sample_weight: Any = None, **options: Any) -> dict[str, float]:
        """Return all scores of the predictions for some inputs.

        `choral.comparison.evaluation.evaluate` also measures costs, calibration curves, out-of-distribution and corrupted inputs.

        Args:
            x: inputs, as given to predict; or with targets, as given to fit: a pair (x, y), or a Dataset or DataLoader of pairs.
            y: their labels or targets; by default those in x, or the target column of the file or data frame.
            sample_weight: a weight for each row, as in `fit`; scores that are not means over rows are then omitted.
            options: further arguments of predict.
        """
        outputs, y = self._judged(x, y, **options)
        prediction = self._corrected(outputs)
        targets = prediction.targets(y)
        return scores_of(
            prediction, targets, None if sample_weight is None else as_weights(sample_weight, len(targets))
        )

    def _judged(self, x: Any, y: Any, **options: Any) -> tuple[Tensor, Any]:
        """Return raw outputs (row, batch, ...) and the targets of their rows; InputError for targets that do not fit."""
        pairs = labeled(x) if y is None and self.table is None else None
        if pairs is None:
            x, y = self._with_targets(x, y)
            outputs = self.outputs(x, **options)
        else:
            y = torch.cat([as_targets(self._with_targets(*pair)[1]) for pair in pairs])
            outputs = torch.cat([self.outputs(self._interface.chosen(part), **options) for part, _ in pairs], 1)
        targets = as_targets(y)
        rows = len(targets) if targets.dim() else 1
        if not rows or rows != outputs.shape[1]:
            raise InputError(f"y has {rows} rows and x has {outputs.shape[1]}; give equally many, at least one.")
        self.likelihood.check_judged(targets, tuple(outputs.shape[2:]))
        return outputs, y

    @property
    def _digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for state in self.states():
            digest.update(pack_tensors(member_tensors(state), {"form": state.form}))
        about = {"likelihood": self.likelihood.to_dict(), "posthoc": [v.to_dict() for v in self.posthoc]}
        digest.update(json.dumps(about, sort_keys=True).encode())
        return digest.hexdigest()

    def with_posthoc(self, *values: Correction) -> "Ensemble":
        """Return the same members with these corrections of `choral.calibration` instead of earlier ones.

        Temperature and weights of members change predictions. Conformal rules add `prediction.sets()` or `prediction.conformal_interval()`.
        Corrections are saved with the ensemble.
        """
        twin = copy.copy(self)
        twin.posthoc = _checked(values, kind=self.likelihood.prediction)
        return twin

    @guarded
    def calibrated(self, x: Any, y: Any = None, *, batch_size: int = 1024, **options: Any) -> "Ensemble":
        """Return the same members with corrections fitted on held-out data, instead of earlier ones.

        Weights of members, such as those of a table's mixture, are kept unless `options` refit them.

        Args:
            x: held-out inputs, or with targets, as in evaluate.
            y: their labels or targets; by default those in x.
            batch_size: largest number of rows evaluated at once.
            options: what to fit: temperature='ensemble', stacking=True, level=0.9 (`choral.ensemble.ensemble.fit_corrections`); by default
                one temperature.
        """
        outputs, y = self._judged(x, y, batch_size=batch_size)
        kept = [value for value in self.posthoc if type(value) is StackingWeights and not options.get("stacking")]
        prediction = correct(self._uncorrected(outputs), kept)
        return self.with_posthoc(*kept, *typed(fit_corrections)(prediction, y, **options))

    @guarded
    def save(self, path: str | Path) -> None:
        """Write the ensemble to one file: safetensors with a JSON header, without code."""
        path = Path(path)
        if path.is_dir():
            raise RunError(f"{path} is a folder; give a file name such as {path / 'ensemble.choral'}.")
        sweep(path.parent, path.name, seconds=3600)
        write_bytes(path, self._to_bytes())

    @guarded
    def export(self, path: str | Path, x: Any = None, *, with_members: bool = False) -> None:
        """Write one graph that predicts as the ensemble does, without choral or the network's code: .onnx, or .pt2 for torch.export.

        It takes any number of rows, and returns by name: probs or mean, entropy or std, epistemic, aleatoric, and conformal sets or intervals
        (`choral.deploy.export.outputs_of`). For a table it takes the numbers of `ensemble.table.read(frame)`. Networks that draw at prediction
        keep their draws. The graph is compared with `predict` before it is written.

        Args:
            path: a file that ends in .onnx or .pt2.
            x: rows to test the graph with, as `predict` or as the graph takes them; random ones by default.
            with_members: also return the predictions of each member (row, member, ...).
        """
        table = table_of(self)
        if x is not None and table is not None:
            cells = table.read(as_frame(x, "x"), path="x") if is_frame(x) else x
            x = torch.as_tensor(cells, dtype=torch.float64)
        elif x is not None:
            x = self._read(self._interface.chosen(next(iter(inputs_of(self._arranged(x))))), "fp32")
        export(self, Path(path), x, members=with_members)

    def _to_bytes(self) -> bytes:
        tensors, forms = dict[str, Tensor](), list[Any]()
        for i, state in enumerate(self.states()):
            forms.append(state.form)
            tensors |= {f"{i:05d}/{n}": t for n, t in member_tensors(state).items()}
        about = {
            "forms": forms,
            "recipe": self.recipe.to_dict(),
            "likelihood": self.likelihood.to_dict(),
            "inputs": written(self._inputs),
            "interface": self._interface.to_dict(),
            "network": self._blueprint.spec(),
            "fingerprint": self._blueprint.fingerprint(),
            "table": None if self.table is None else self.table.to_dict(),
            "info": self.info,
            "posthoc": [v.to_dict() for v in self.posthoc],
        }
        return pack_tensors(tensors, about)
