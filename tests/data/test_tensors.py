import numpy as np
import pytest
import torch

from choral.base import batches
from choral.base.errors import InputError
from choral.data.tensors import check_rows, gathered


def leaf(value, name):
    return torch.as_tensor(np.asarray(value))


def test_tuples_mappings_and_lists_of_arrays_are_trees_and_lists_of_numbers_are_not():
    assert isinstance(gathered([[1, 2], [3, 4]], leaf), torch.Tensor)
    assert batches.leaves(gathered([np.ones(2), np.ones((2, 3))], leaf))[1].shape == (2, 3)
    assert set(gathered({"a": [1, 2]}, leaf)) == {"a"}
    with pytest.raises(InputError, match=r"x\['a'\] is an empty tuple"):
        gathered({"a": ()}, leaf)


def test_rows_must_agree_and_leaves_are_named_as_a_user_would_reach_them():
    with pytest.raises(InputError, match=r"x\['a'\] has 3, x\['b'\]\[0\] has 2"):
        check_rows({"a": torch.ones(3), "b": (torch.ones(2),)})
    with pytest.raises(InputError, match="stack rows into one array"):
        check_rows([torch.ones(3), torch.ones(2)])
