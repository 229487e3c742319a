"""One fit per method, problem and executor, shared by the checks that only look at it."""

import pytest

from choral.testing import checks

_FITS = {}


@pytest.fixture
def shared_fits(monkeypatch):
    """Let `choral.testing.checks` fit each method on each problem once, unless a seed or a folder is given."""
    fitted = checks._fitted

    def once(recipe, trial, **options):
        if not options.keys() <= {"compute"}:
            return fitted(recipe, trial, **options)
        key = repr((recipe, id(trial), options))
        if key not in _FITS:
            _FITS[key] = trial, fitted(recipe, trial, **options)  # the trial is kept: its id is part of the key
        return _FITS[key][1]

    monkeypatch.setattr(checks, "_fitted", once)
