import numpy as np
import pytest

from choral.corruptions.functions import RowDraws


def test_rows_have_their_own_streams_whatever_stands_beside_them() -> None:
    many, few = RowDraws(3, "fog", range(10)), RowDraws(3, "fog", range(4, 6))
    np.testing.assert_array_equal(many.normal(5)[4:6], few.normal(5))
    np.testing.assert_array_equal(many.integers(3, low=-2, high=2)[4:6], few.integers(3, low=-2, high=2))
    np.testing.assert_array_equal(many.uniform()[4:6], few.uniform())
    assert len(np.unique(RowDraws(3, "fog", range(50)).uniform())) == 50
    assert RowDraws(3, "snow", range(1)).uniform() != RowDraws(3, "fog", range(1)).uniform()
    assert RowDraws(4, "fog", range(1)).uniform() != RowDraws(3, "fog", range(1)).uniform()


def test_draws_have_the_distributions_they_are_named_after() -> None:
    draws = RowDraws(0, "test", range(20))
    assert draws.normal(5_000).std() == pytest.approx(1.0, abs=0.01)
    uniform = draws.uniform(5_000, low=-2, high=4)
    assert (uniform.min(), uniform.max(), uniform.mean()) == pytest.approx((-2, 4, 1), abs=0.02)
    whole = draws.integers(5_000, low=-1, high=1)
    assert [(whole == value).mean() for value in (-1, 0, 1)] == pytest.approx([1 / 3] * 3, abs=0.01)
    counts = draws.poisson(np.full((20, 5_000), 7.0))
    assert (counts.mean(), counts.var()) == pytest.approx((7, 7), rel=0.02)
