"""scikit-learn's own checks of any estimator, none of them expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from choral.recipes import METHODS
from choral.sklearn import EnsembleClassifier, EnsembleRegressor

NAMES = [name for name in ("auto", "packed", "tabm", "deep_ensemble") if name == "auto" or name in METHODS]
EPOCHS = {"auto": 60, "deep_ensemble": 60}


def estimators(kind):
    return [kind(name, epochs=EPOCHS.get(name, 20), random_state=0) for name in NAMES]


@pytest.mark.slow
@parametrize_with_checks([*estimators(EnsembleClassifier), *estimators(EnsembleRegressor)])
def test_it_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
