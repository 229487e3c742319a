"""Another number of threads rounds sums differently and changes nothing else; within one number nothing changes at all."""

import pytest
import torch

from choral import models
from choral.fit import fit
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training


def build():
    return models.mlp(64, 10, hidden=(512,))


def members(threads, executor, **options):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 64, generator=draw), torch.randint(10, (256,), generator=draw)
    training = Training(rate=0.001, optimiser=Adam(), batch_size=128)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        recipe = make("deep_ensemble", epochs=6, members=2, training=training)
        return list(fit(build, (x, y), recipe, executor=executor, **options).states())
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
def test_members_agree_across_numbers_of_threads_to_rounding(executor):
    one, two, again = (members(t, executor) for t in (1, 2, 2))
    for a, b, c in zip(one, two, again):
        for name in a.params:
            torch.testing.assert_close(a.params[name], b.params[name], atol=1e-4, rtol=1e-3)
            assert torch.equal(b.params[name], c.params[name])
