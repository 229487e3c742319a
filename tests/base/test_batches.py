import pytest
import torch

from choral.base import batches
from choral.base.errors import InputError

TREE = {"a": torch.arange(6).view(3, 2), "b": (torch.arange(3.0), [torch.ones(3, 1, 2)])}


def test_a_tree_is_taken_apart_and_put_together_along_its_batch_axis():
    parts = batches.chunks(TREE, 2)
    assert [batches.rows(p) for p in parts] == [2, 1]
    assert batches.equal(batches.filled(parts[0], map(torch.cat, zip(*map(batches.leaves, parts)))), TREE)
    assert torch.equal(batches.part(TREE, slice(1, 2))["b"][0], torch.tensor([1.0]))
    assert isinstance(batches.part(TREE, slice(1, 2))["b"][1], list)


@pytest.mark.parametrize("batch", [TREE, torch.zeros(4, 3, dtype=torch.float64)])
def test_a_description_makes_such_a_batch(batch):
    made = batches.made_up(batches.described(batch), batches.rows(batch))
    assert batches.signature(made) == batches.signature(batch)


@pytest.mark.parametrize(
    "damaged",
    [{"shape": [1 << 40], "type": "float32"}, {"shape": [2], "type": "nn"}, {"shape": [-1], "type": "int64"}, 3],
)
def test_a_damaged_description_is_refused(damaged):
    with pytest.raises(InputError, match="does not describe a batch"):
        batches.made_up(damaged, 1)
