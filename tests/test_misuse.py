"""Every wrong use in the table is answered with one sentence; the right ones beside them are not."""

import contextlib
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.misuse import CASES, RIGHT, rows

from choral.base.errors import ChoralError

TRAINS = (
    "fit",
    "compare",
    "fit_table",
    "prepare",
    "leaves",
    "load",
    "save",
    "_planned",
    "planned",
    "writer",
    "evaluate",
    "measure",
    "run_leaf",
)


OF_SKLEARN = ("EnsembleClassifier", "EnsembleRegressor")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is doubtful beside the mistake is not asked here
        yield


def test_there_are_many_cases_of_everything_public():
    assert len(CASES) >= 300


@pytest.mark.parametrize("part", range(20))
def test_a_wrong_use_is_one_sentence(part, tmp_path):
    fallen = {}
    for name in list(CASES)[part::20]:
        function, arguments = CASES[name]
        try:
            fallen[name] = f"silent: {str(function(**arguments))[:80]}"
        except ChoralError as error:
            if "\n" in str(error) or not str(error).rstrip().endswith((".", "?")):
                fallen[name] = f"no sentence: {error}"
        except (ValueError, TypeError) as error:
            if not any(kind in name for kind in OF_SKLEARN):  # whose checks of arrays answer, in its words
                fallen[name] = f"{type(error).__name__}: {error}"
        except Exception as error:
            fallen[name] = f"{type(error).__name__}: {error}"
    assert not fallen
    assert not list(tmp_path.glob("*.choral"))


@pytest.mark.parametrize("name", [n for n in RIGHT if not any(word in n for word in TRAINS)])
def test_the_right_use_is_taken(name):
    function, arguments = RIGHT[name]
    function(**arguments)


ROWS = [
    (f, right, argument)
    for f, right, wrong in rows()
    for argument in wrong
    if argument in right and argument != "replace" and not any(kind in str(f) for kind in OF_SKLEARN)
]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.binary(max_size=2),
    st.lists(st.one_of(st.floats(), st.text(max_size=2)), max_size=3), st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.builds(object), st.sampled_from([torch.zeros(0), torch.tensor(float("nan")), torch.zeros(2, 3, dtype=torch.complex64), len, dict]),
)  # fmt: skip


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=st.sampled_from(ROWS), junk=JUNK)
def test_anything_in_the_place_of_an_argument_is_taken_or_one_sentence(case, junk):
    function, right, argument = case
    with contextlib.suppress(ChoralError):  # of one line: `ChoralError.__str__`
        function(**right | {argument: junk})
