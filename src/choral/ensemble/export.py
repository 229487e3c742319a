"""An ensemble as one program of torch.export: rows in, prediction with its uncertainty out, without choral or the network's code.

The program runs every member as a plain network and puts the outputs together as `predict` does, corrections included. What it gives
is compared with `predict` before anything is written.
"""

import contextlib
import io
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from choral.base import batches, draws
from choral.base.batches import Batch
from choral.base.errors import InputError
from choral.data.inputs import prepare
from choral.engine.files import write_bytes

if TYPE_CHECKING:
    from choral.ensemble.ensemble import Ensemble

SUFFIX, ABOUT = ".pt2", "choral.json"
MEASURES = ("mean", "variance", "aleatoric", "epistemic")
"""What the program returns, by name, each as the attribute of a prediction: mean holds the probabilities of classes."""
_ALONE = threading.Lock()
_TRACED, _TRIED = 5, 64  # rows that the program is made with, and tried on, at most
_CLOSE = 1e-4  # of the largest value


class Program(nn.Module):
    """The whole prediction as one module.

    Args:
        ensemble: whose members and corrections it holds.
        floats: type of the networks.
    """

    def __init__(self, ensemble: "Ensemble", floats: torch.dtype):
        super().__init__()
        structure = ensemble.recipe.structure
        joint = [ensemble._network(i) for i in range(ensemble._count)]
        members = [structure.member(network, i) for network in joint for i in range(structure.members)]
        self.members = nn.ModuleList(member.eval().requires_grad_(False) for member in members)
        self._ensemble, self._floats = (ensemble,), floats  # a tuple, since it is no part of the program

    def forward(self, x: Batch) -> dict[str, Tensor]:
        """Return the measures of a batch."""
        (ensemble,) = self._ensemble
        ready = prepare(x, ensemble._inputs, training=False, floats=self._floats)
        outputs = torch.stack([member(ready) for member in self.members])
        wide = outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
        prediction = ensemble._corrected(wide)
        return {name: getattr(prediction, name) for name in MEASURES}


def export(ensemble: "Ensemble", path: Path, x: Batch, floats: torch.dtype) -> None:
    """Write the program of an ensemble; raises InputError where there is none that predicts the same.

    Args:
        ensemble: any whose members draw nothing when they predict.
        path: ends in .pt2.
        x: some rows as the networks read them.
        floats: type of the networks.
    """
    if path.suffix != SUFFIX:
        raise InputError(f"{path} does not end in {SUFFIX}, as programs of torch.export do; give such a name.")
    rows = batches.rows(x)
    if rows < 2:
        raise InputError(f"x has {rows} row(s); give 2 or more, by which the program is made and tried.")
    ensemble.predict(batches.part(x, slice(2)))  # says what is wrong with x
    if ensemble.recipe.structure.draws > 1 or _draws(
        ensemble, prepare(x, ensemble._inputs, training=False, floats=floats)
    ):
        raise InputError(
            f"{ensemble.recipe.name} draws weights or units whenever it predicts, and a program of torch.export would keep one draw; export an ensemble "
            "of fixed members, such as those of deep_ensemble, packed, batch_ensemble or snapshot."
        )
    whole = batches.part(x, slice(_TRIED))
    program = _traced(Program(ensemble, floats).eval(), batches.part(x, slice(_TRACED)))
    for few in (whole, batches.part(x, slice(1))):
        _check(program, ensemble, few)
    about = {
        "task": ensemble.task,
        "members": ensemble.members,
        "measures": MEASURES,
        "understood": {"task": ensemble.task} | ensemble.likelihood.understood(),
    }
    held = io.BytesIO()
    torch.export.save(program, held, extra_files={ABOUT: json.dumps(about | _columns(ensemble))})
    write_bytes(path, held.getvalue())


def _draws(ensemble: "Ensemble", x: Batch) -> bool:
    """Return whether networks predict otherwise with other draws."""
    structure, network = ensemble.recipe.structure, ensemble._network(0)

    def outputs(key: int) -> Tensor:
        with torch.no_grad(), draws.keyed(key):
            return structure.unfold(network(structure.feed(batches.part(x, slice(_TRACED)), None)[0]))

    return not torch.equal(outputs(0), outputs(1))


def _columns(ensemble: "Ensemble") -> dict[str, Any]:
    """Return what a table's numbers mean: the columns of x, and the classes of the mean."""
    table = ensemble.table
    if table is None or not table.columns:
        return {}
    return {"table": table.to_dict()}


def _traced(module: Program, x: Batch) -> Any:
    """Return the program of a module, for any number of rows."""
    rows = torch.export.Dim("rows", min=1)
    shapes: Any = batches.mapped(lambda t: {0: rows}, x)  # type: ignore[arg-type, return-value]  # a tree of shapes
    try:
        with _quietly(), torch.no_grad():
            return torch.export.export(module, (x,), dynamic_shapes=(shapes,), strict=False)
    except Exception as error:  # torch.export raises what its parts raise
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            f"torch.export cannot follow this network ({type(error).__name__}: {said}); it takes networks whose forward does the same for any "
            "values and number of rows (x.shape[0] instead of len(x)). ensemble.save writes every ensemble."
        ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Leave out warnings and logs of torch.export, which tell of what is refused in a sentence, and checks of distributions, which it cannot follow."""
    logger = logging.getLogger("torch")
    with _ALONE:  # both belong to the process
        level, checked = logger.level, Distribution._validate_args
        try:
            logger.setLevel(logging.CRITICAL)
            Distribution.set_default_validate_args(False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logger.setLevel(level)
            Distribution.set_default_validate_args(checked)


def _check(program: Any, ensemble: "Ensemble", x: Batch) -> None:
    """Raise InputError if the program predicts something else than the ensemble."""
    found, expected = program.module()(x), ensemble._predictive(x)
    for name in MEASURES:
        right = getattr(expected, name)
        distance = (found[name] - right).abs().max()
        if not distance <= _CLOSE * (1 + right.abs().max()):
            raise InputError(
                f"the program's {name} differs by {float(distance):.2g} from what the ensemble predicts: forward draws, or does something else for "
                "other rows; ensemble.save writes every ensemble."
            )
