"""scikit-learn's own checks of any estimator, none of them expected to fail."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from choral.sklearn import EnsembleClassifier, EnsembleRegressor

EPOCHS = {"auto": 60, "deep_ensemble": 60}
NAMES = ("tabm", "deep_ensemble", "packed")


def estimators(*names):
    kinds = (EnsembleClassifier, EnsembleRegressor)
    return [kind(name, epochs=EPOCHS.get(name, 20), random_state=0) for kind in kinds for name in names]


@parametrize_with_checks(estimators("auto"))
def test_it_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.full
@parametrize_with_checks(estimators(*NAMES))
def test_others_pass_them_too(estimator, check):
    check(estimator)
