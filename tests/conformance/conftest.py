"""One fit per method, problem and executor, shared by the checks of a worker."""

import pytest

from choral.ensemble.ensemble import Ensemble
from choral.testing import Trial, checks

_FITS: dict[str, tuple[Trial, Ensemble]] = {}
_SEED = 3  # of the fit that `seed_decides` looks at first


@pytest.fixture
def shared_fits(monkeypatch):
    """Let `choral.testing.checks` share fits; a check that asks for the same fit again gets a new one."""
    fitted, handed_out = checks._fitted, set()

    def once(recipe, trial, **options):
        options = {"seed": _SEED, **options}
        key = repr((recipe, id(trial), sorted(options.items())))
        if not options.keys() <= {"compute", "seed"} or options["seed"] != _SEED or key in handed_out:
            return fitted(recipe, trial, **options)
        handed_out.add(key)
        if key not in _FITS:
            _FITS[key] = trial, fitted(recipe, trial, **options)  # the trial is kept: its id is part of the key
        return _FITS[key][1]

    monkeypatch.setattr(checks, "_fitted", once)
