"""MAPIE takes the regressor's own deviations."""

import numpy as np
import pytest

from choral.sklearn import EnsembleRegressor

regression = pytest.importorskip("mapie.regression", reason="MAPIE is not installed")


def test_intervals_scaled_by_the_deviation_hold_what_they_promise():
    from mapie.conformity_scores import StdConformityScore

    draw = np.random.default_rng(0)
    x = draw.uniform(-1, 1, size=(900, 1))
    y = 2e5 + 1e4 * x[:, 0] + 1e3 * np.exp(2 * x[:, 0]) * draw.normal(size=900)
    model = EnsembleRegressor("packed", epochs=60, validation_fraction=None, random_state=0).fit(x[:200], y[:200])
    split = regression.SplitConformalRegressor(
        model, confidence_level=0.9, conformity_score=StdConformityScore(), prefit=True
    )
    split.conformalize(x[200:500], y[200:500])
    means, intervals = split.predict_interval(x[500:])
    low, high = intervals[:, 0, 0], intervals[:, 1, 0]
    assert np.allclose(means, model.predict(x[500:]))
    assert abs(((low <= y[500:]) & (y[500:] <= high)).mean() - 0.9) < 0.06
    own_low, own_high = model.calibrate(x[200:500], y[200:500]).predict_interval(x[500:], level=0.9)
    assert np.allclose(own_high, high)  # the same rule, by two hands
    assert ((low - own_low) / (high - low) < 0.05).all()  # its low ends are one row of 300 further in
    left, right = x[500:, 0] < -0.5, x[500:, 0] > 0.5
    assert (high - low)[right].mean() > 2 * (high - low)[left].mean()
