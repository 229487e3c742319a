"""A fit that ends early leaves an estimator as it was."""

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

from choral.sklearn import EnsembleClassifier, EnsembleRegressor, estimators

X = np.random.default_rng(0).normal(size=(60, 3))
Y = X @ [1.0, 2.0, 3.0]
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
BRIEF = {"method": "packed", "epochs": 4, "random_state": 0}


@pytest.fixture
def interrupt(monkeypatch):
    """Return what makes training stop as Ctrl-C or an error would."""

    def begin(error=KeyboardInterrupt):
        def stop(*_, **__):
            raise error

        monkeypatch.setattr(estimators, "prepared", stop)

    return begin


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ValueError])
def test_the_old_model_is_whole_after_a_refit_that_ended_early(interrupt, error):
    numbered = EnsembleClassifier(**BRIEF).fit(X, (X[:, 0] > 0).astype(int))
    flat = EnsembleRegressor(**BRIEF).fit(FRAME, Y).calibrate(FRAME, Y)
    before = [(model, dict(model.__dict__)) for model in (numbered, flat)]
    said = numbered.predict(X), flat.predict(FRAME), flat.predict_interval(FRAME)
    interrupt(error)
    with pytest.raises(error):
        numbered.fit(FRAME, np.array(["no", "yes", "zz"])[np.arange(60) % 3])
    with pytest.raises(error):
        flat.fit(FRAME[["c", "b"]], np.column_stack([Y, Y]))
    assert all(model.__dict__ == kept for model, kept in before)
    assert np.array_equal(numbered.predict(X), said[0])
    assert np.array_equal(flat.predict(FRAME), said[1])
    assert np.array_equal(flat.predict_interval(FRAME), said[2])


@pytest.mark.parametrize("kind", [EnsembleRegressor, EnsembleClassifier])
def test_nothing_is_fitted_after_a_first_fit_that_ended_early(interrupt, kind):
    model = kind(**BRIEF)
    interrupt()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, X[:, 0] > 0)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert not [name for name in vars(model) if name.endswith("_")]


def test_a_refit_forgets_the_names_of_the_fit_before():
    model = EnsembleRegressor(**BRIEF).fit(FRAME, Y).fit(X[:, :2], Y)
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 2
