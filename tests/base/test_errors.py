import pytest
import torch
from torch import nn

import choral


def test_a_warning_names_the_line_of_the_caller():
    x = torch.randn(40, 2)
    with pytest.warns(UserWarning, match="budget is below") as said:
        choral.fit(lambda: nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), choral.recipes.single(epochs=1))
    assert {warning.filename for warning in said} == {__file__}
