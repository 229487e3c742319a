"""Check that no member's output depends on what belongs to another member."""

from torch import nn

from choral.base import batches
from choral.base.batches import Batch
from choral.engine.inspect import _Trial
from choral.layers.joint.network import Joint
from choral.structures.base import Structure
from choral.structures.independence import refuse_mixed, why_not_run


def check_independence(structure: Structure, network: nn.Module, x: Batch) -> None:
    """Raise ConversionError if a member's output depends on another's weights or inputs; x are rows as the plain network reads them."""
    if not isinstance(network, Joint):
        return
    inputs, _ = structure.feed(batches.part(x, slice(4)), None)
    trial = _Trial(network, structure, lambda run: structure.unfold(run(inputs)), training=True)
    try:
        outputs = trial.call()
    except RuntimeError as error:
        raise why_not_run(network, error) from error
    assert isinstance(trial.network, Joint)
    refuse_mixed(trial.network, outputs, trial.inputs, list(trial.running.called))
