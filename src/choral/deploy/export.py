"""Export: an ensemble as one graph from raw rows to the prediction with its uncertainty, without choral or the network's code.

The graph encodes the columns of a table, runs every member as a plain network (one that draws, once for each of its draws, which become
constants) and puts the outputs together as `predict` does, corrections included. It is a program of torch.export (.pt2) or a model of ONNX
(.onnx), and is compared with `predict` before anything is written.
"""

import contextlib
import io
import json
import logging
import operator
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from choral.base import batches, rng
from choral.base.batches import Batch
from choral.base.errors import InputError, needed
from choral.calibration import ConformalLabels, ConformalQuantile
from choral.calibration.conformal import Conformal
from choral.deploy import ABOUT
from choral.engine.files import write_bytes
from choral.engine.task import Task
from choral.layers.keyed import keyed
from choral.predictions import Mixture, Prediction, Predictive, QuantileRegression
from choral.tables.table import Table

if TYPE_CHECKING:
    from choral.ensemble.ensemble import Ensemble

_ALONE = threading.Lock()
_TRACED, _TRIED = 5, 64  # rows that the graph is made with, and tried on
_CLOSE = 1e-4  # of the largest value; a runtime rounds in its own way

Run = Callable[[Batch], dict[str, Tensor]]
"""A graph ready to be run, outputs by name."""


class Program(nn.Module):
    """The whole prediction of an ensemble as one module; `drawn` if networks draw when they predict, `members` to return theirs too."""

    def __init__(self, ensemble: "Ensemble", task: Task, *, drawn: bool, members: bool):
        super().__init__()
        structure = ensemble.recipe.structure
        networks = [ensemble._network(i) for i in range(ensemble._count)]
        if not drawn:
            networks = [structure.member(network, i) for network in networks for i in range(structure.members)]
        self.networks = nn.ModuleList(network.eval().requires_grad_(False) for network in networks)
        self._held = (ensemble, task)  # a tuple, since it is no part of the graph
        self._drawn, self._members = drawn, members

    def forward(self, x: Batch) -> dict[str, Tensor]:
        """Return the outputs of the graph for a batch."""
        ensemble, task = self._held
        ready = task.prepared(network_inputs(ensemble, x), training=False)
        if self._drawn:
            found = torch.cat([part for number, _ in enumerate(self.networks) for part in self._passes(number, ready)])
        else:
            found = torch.stack([task.widened(network(ready)) for network in self.networks])
        named = outputs_of(ensemble._corrected(found), ensemble._interface.target, members=self._members)
        wide = torch.float64 if task.floats == torch.float64 else torch.float32
        return {name: value.to(wide) if value.is_floating_point() else value for name, value in named.items()}

    def _passes(self, number: int, ready: Batch) -> Iterator[Tensor]:
        """Yield the outputs of each pass of a joint network, with the draws that `predict` makes."""
        _, task = self._held
        for draw in range(task.structure.draws):
            with keyed(rng.key(0, "predict", number), draw):
                yield task.widened(task.run(self.networks[number], task.structure.feed(ready, None)[0]))


def outputs_of(found: Predictive, target: tuple[int, ...] | None, *, members: bool = False) -> dict[str, Tensor]:
    """Return the outputs of a graph by name, with the rows first.

    Classes and labels: probs, entropy = aleatoric + epistemic, mutual_information (equal to epistemic), and set if there is a conformal rule.
    Numbers: mean, std with std² = aleatoric + epistemic, and lower and upper if there is a conformal rule or fitted quantiles.

    Sets of classes are not randomized, since the random share depends on the last bit of the probabilities: they contain the sets of `predict`
    and at most one class more. `members` adds the predictions of each member (row, member, ...).
    """
    shown, rule = Prediction(found, target), found.conformal
    if "probs" in found.offers:
        named = {"probs": shown.probs, "entropy": shown.entropy}
        split = {"epistemic": shown.mutual_information, "aleatoric": shown.expected_entropy}
        split["mutual_information"] = shown.mutual_information * 1.0  # an output of its own
    else:
        named = {"mean": shown.mean, "std": shown.std}
        split = {"epistemic": shown._like_y(found.epistemic), "aleatoric": shown._like_y(found.aleatoric)}
    named |= split
    if "probs" in found.offers and rule is not None:
        named["set"] = _set(rule, found)
    elif isinstance(rule, ConformalQuantile) and isinstance(found, Mixture):
        raise InputError(
            "conformal='quantile' needs the quantiles of this likelihood's mixture, which no graph can compute; calibrate with "
            "conformal='scaled' or 'residual'."
        )
    elif rule is not None or isinstance(found, QuantileRegression):
        named |= dict(zip(("lower", "upper"), shown.interval() if rule is None else shown.conformal_interval()))
    if members:
        named["members"] = shown.members.movedim(0, 1).clone()
    return named


def _set(rule: Any, found: Any, by: float = 0.0) -> Tensor:
    """Return conformal sets by operations that a graph has, with thresholds moved `by` some score."""
    probs = found.probs.double()
    if isinstance(rule, ConformalLabels):
        return replace(rule, thresholds=tuple(t and t + by for t in rule.thresholds)).apply(probs)
    return replace(rule, threshold=rule.threshold and rule.threshold + by).inside(probs, 1.0 - rule.randomized)


def export(ensemble: "Ensemble", path: Path, x: Batch | None, *, members: bool = False) -> None:
    """Write the graph of an ensemble into a .pt2 or .onnx; raises InputError where there is none that predicts the same.

    `x` are rows as the graph reads them, by which it is made and tried; made-up ones if None. `members` adds what each member predicts.
    """
    kinds = {".pt2": _saved_program, ".onnx": _saved_onnx}
    if path.suffix not in kinds:
        raise InputError(f"{path} does not say what to write; give a name ending in {' or '.join(kinds)}.")
    given = example(ensemble) if x is None else x
    count = batches.rows(given)
    few, tried = (batches.part(given, torch.arange(n) % count) for n in (_TRACED, min(count, _TRIED)))
    readable = network_inputs(ensemble, few)
    try:
        ensemble.predict(readable)  # says what is wrong with x
    except InputError as error:
        if x is not None:
            raise
        raise InputError(f"made-up rows cannot be predicted ({error}); give some, export(path, x).") from error
    task = ensemble._evaluation_for(readable, "cpu", "fp32")._task
    drawn = task.structure.draws > 1 or _draws(ensemble, task, readable)
    program = _traced(Program(ensemble, task, drawn=drawn, members=members).eval(), few)
    if drawn:
        program = _traced(_folded(program.module()), few)
    about = describe(ensemble) | {"inputs": described_inputs(few)}
    content, run = kinds[path.suffix](program, few, about)
    for rows in (tried, batches.part(given, slice(1))):
        with _explained(f"the graph fails for {batches.rows(rows)} row(s)"):
            found = run(rows)
        _check(found, ensemble, rows, members=members)
    write_bytes(path, content)


def table_of(ensemble: "Ensemble") -> Table | None:
    """Return how an ensemble reads the columns of a table; None if it was fitted on arrays."""
    return ensemble.table if ensemble.table is not None and ensemble.table.columns else None


def network_inputs(ensemble: "Ensemble", x: Batch) -> Batch:
    """Return what the networks read of a graph's inputs: the numbers of a table are encoded by its columns."""
    table = table_of(ensemble)
    return x if table is None else torch.cat([*table.encoded(x)], 1)  # type: ignore[arg-type]  # a table's x is one tensor


def describe(ensemble: "Ensemble") -> dict[str, Any]:
    """Return what an exported file says about itself: method, task, versions, level of its intervals or sets, digest and columns."""
    from choral import __version__

    table, levels = table_of(ensemble), [value.level for value in ensemble.posthoc if isinstance(value, Conformal)]
    used: list[Any] = [] if table is None else table.used
    return {
        "method": ensemble.recipe.name,
        "task": ensemble.task,
        "target": None if table is None else table.target,
        "members": ensemble.members,
        "versions": {"choral": __version__, "torch": torch.__version__},
        "level": levels[0] if levels else None,
        "digest": ensemble._digest,
        "understood": {"task": ensemble.task} | ensemble.likelihood.understood(),
        "classes": list(ensemble.table.classes) if ensemble.table is not None else [],
        "columns": [{"name": c.name, "read_as": c.read_as, "values": list(getattr(c, "values", ()))} for c in used],
        "table": None if table is None else table.to_dict(),
    }


def described_inputs(x: Batch) -> list[dict[str, Any]]:
    """Return name, shape of one row and type of each input; it is called x, as the key of a dict, or x_0, x_1, ... in a tuple.

    >>> [i["name"] for i in described_inputs({"image": torch.zeros(1), "age": torch.zeros(1)})]
    ['image', 'age']
    """
    leaves = batches.leaves(x)
    keys = [*x] if isinstance(x, dict) and len(x) == len(leaves) else [f"x_{i}" for i, _ in enumerate(leaves)]
    return [
        {"name": name, "shape": list(t.shape[1:]), "type": str(t.dtype).removeprefix("torch.")}
        for name, t in zip(["x"] if x is leaves[0] else keys, leaves)
    ]


def example(ensemble: "Ensemble") -> Batch:
    """Return made-up rows like those an ensemble was fitted on; of a table, some cells have no value."""
    interface, table, generator = ensemble._interface, table_of(ensemble), torch.Generator().manual_seed(0)
    if table is not None:
        middle, spread = torch.tensor([column.usual for column in table.used], dtype=torch.float64).T
        cells = torch.randn(_TRIED, len(middle), generator=generator, dtype=torch.float64) * spread + middle
        return cells.masked_fill(torch.rand(cells.shape, generator=generator) < 0.1, torch.nan)
    if interface.reads is None:
        raise InputError("the ensemble does not know what its inputs look like; give some rows, export(path, x).")

    def filled(t: Tensor) -> Tensor:
        if interface.scale == "bytes" or t.dtype == torch.uint8:
            return torch.randint(256, t.shape, generator=generator, dtype=torch.uint8)
        if not t.is_floating_point():
            return t  # the only number that every code or token has
        draw = torch.rand if interface.scale == "unit" else torch.randn
        return draw(t.shape, generator=generator, dtype=t.dtype)

    return batches.mapped(filled, batches.made_up(interface.reads, _TRIED))


def _draws(ensemble: "Ensemble", task: Task, x: Batch) -> bool:
    """Return whether networks predict otherwise with other draws."""
    network = ensemble._network(0)

    def outputs(key: int) -> Tensor:
        with torch.no_grad(), keyed(key):
            return task.run(network, task.structure.feed(task.prepared(x, training=False), None)[0])

    return not torch.equal(outputs(0), outputs(1))


def _traced(module: nn.Module, x: Batch) -> Any:
    """Return the program of a module, for any number of rows."""
    rows = torch.export.Dim("rows", min=1)
    shapes: Any = batches.mapped(lambda t: {0: rows}, x)  # type: ignore[arg-type, return-value]  # a tree of shapes
    advice = (
        "it takes networks whose forward does the same for any values and number of rows (x.shape[0] instead of len(x)), and draws nothing "
        "row by row. ensemble.save writes every ensemble"
    )
    with _explained("torch.export cannot follow this network", advice), _quietly(), torch.no_grad():
        return torch.export.export(module, (x,), dynamic_shapes=(shapes,), strict=False)


@contextlib.contextmanager
def _explained(what: str, advice: str = "") -> Iterator[None]:
    """Raise InputError for any error of torch.export, torch.onnx or a runtime, which raise what their parts raise."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # exporters and runtimes fail in ways of their own
        first: BaseException = error
        while first.__cause__ is not None:
            first = first.__cause__  # what the others wrap
        line = (str(first).strip().splitlines() or [""])[0]
        raise InputError(f"{what} ({type(first).__name__}: {line}){'; ' * bool(advice)}{advice}.") from error


def _folded(module: Any) -> Any:
    """Return a graph in which all that follows from constants alone, such as drawn weights, is one constant."""
    graph, known = module.graph, dict[Any, Any]()
    for node in graph.nodes:
        if node.op == "get_attr":
            known[node] = operator.attrgetter(node.target)(module)
        elif node.op == "call_function" and all(n in known for n in node.all_input_nodes):
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
            with torch.no_grad():
                known[node] = node.target(*args, **kwargs)
    for number, (node, value) in enumerate(known.items()):
        used = any(user not in known for user in node.users)
        if node.op == "call_function" and used and isinstance(value, Tensor):
            module.register_buffer(f"constant_{number}", value.detach().clone())
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.get_attr(f"constant_{number}"))
    for node in reversed(known):  # by name, since code that writes into a tensor never counts as dead
        if not node.users:
            graph.erase_node(node)
    module.recompile()
    return module


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Leave out what torch.export warns of, checks of distributions and fused attention, which it cannot follow."""
    logger, attention = logging.getLogger("torch"), torch.backends.mha
    with _ALONE:  # all of these belong to the process
        level, checked, fast = logger.level, Distribution._validate_args, attention.get_fastpath_enabled()
        try:
            logger.setLevel(logging.CRITICAL)
            Distribution.set_default_validate_args(False)
            attention.set_fastpath_enabled(False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logger.setLevel(level)
            Distribution.set_default_validate_args(checked)
            attention.set_fastpath_enabled(fast)


def _saved_program(program: Any, x: Batch, about: dict[str, Any]) -> tuple[bytes, Run]:
    """Return a program of torch.export as bytes, and what runs those."""
    held = io.BytesIO()
    with _quietly():
        torch.export.save(program, held, extra_files={ABOUT: json.dumps(about)})
        module = torch.export.load(io.BytesIO(held.getvalue())).module()
    return held.getvalue(), module


def _saved_onnx(program: Any, x: Batch, about: dict[str, Any]) -> tuple[bytes, Run]:
    """Return a model of ONNX as bytes, and what runs those."""
    onnx, onnxruntime, _ = (needed(name, "onnx") for name in ("onnx", "onnxruntime", "onnxscript"))
    names, outputs = [i["name"] for i in about["inputs"]], [*program.module()(x)]
    aten = torch.ops.aten
    own = {aten.softplus.default: _softplus, aten.erf.default: _erf, aten.embedding.default: _embedding}
    lacking = _explained("ONNX has no operation for something in this network", "export a .pt2")
    with lacking, _quietly(), contextlib.redirect_stdout(io.StringIO()):
        found: Any = torch.onnx.export(program.run_decompositions(own), (), dynamo=True, verbose=False)
        _name(found.model.graph, names, outputs)
        model = found.model_proto
        onnx.helper.set_model_props(model, {ABOUT: json.dumps(about)})
        content = model.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(rows: Batch) -> dict[str, Tensor]:
        found = session.run(outputs, {n: t.numpy() for n, t in zip(names, batches.leaves(rows))})
        return {name: torch.from_numpy(value) for name, value in zip(outputs, found)}

    return content, run


def _softplus(x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Return softplus by what onnxruntime has for float64 too."""
    if x.dtype != torch.float64:
        return NotImplemented
    return x.clamp_min(0) + torch.log(1 + torch.exp(-beta * x.abs())) / beta


def _erf(x: Tensor) -> Tensor:
    """Return the error function by what onnxruntime has for float64 too, exact to 1e-7."""
    return torch.erf(x.float()).double() if x.dtype == torch.float64 else NotImplemented


def _embedding(weight: Tensor, codes: Tensor, *_: Any) -> Tensor:
    """Return rows of a table; ONNX counts negative codes from the end, so they become one that is out of bounds."""
    known = torch.where(codes < 0, len(weight), codes)
    return weight.index_select(0, known.flatten()).reshape(*codes.shape, -1)


def _name(graph: Any, inputs: list[str], outputs: list[str]) -> None:
    """Give the inputs and outputs of an ONNX graph their names, and other ones to values within it."""
    for number, value in enumerate(value for node in graph for value in node.outputs):
        value.name = f"value_{number}"
    for value, name in (*zip(graph.inputs, inputs), *zip(graph.outputs, outputs)):
        value.name = name


def _check(found: dict[str, Tensor], ensemble: "Ensemble", x: Batch, *, members: bool) -> None:
    """Raise InputError if a graph gives something else than the ensemble predicts."""
    expected = ensemble._predictive(network_inputs(ensemble, x))
    named = outputs_of(expected, ensemble._interface.target, members=members)
    for name, right in named.items():
        if right.dtype == torch.bool:
            near, far = (_set(expected.conformal, expected, by) for by in (-_CLOSE, _CLOSE))
            wrong = (near & ~found[name]) | (found[name] & ~far)  # a score at the threshold may round to either side
            distance, right = wrong.double().max(), near.double()
        else:
            same = found[name].double() == right.double()  # infinite ends
            distance = torch.where(same, 0.0, (found[name].double() - right.double()).abs()).max()
        largest = right.double().abs().nan_to_num(0.0, 0.0, 0.0).max()
        if found[name].shape != right.shape or not distance <= _CLOSE * (1 + largest):
            raise InputError(
                f"the graph's {name} differs by {float(distance):.2g} from what the ensemble predicts: forward draws, or does something else for "
                "other rows; ensemble.save writes every ensemble."
            )
