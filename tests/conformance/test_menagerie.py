"""Every method on awkward networks and data: it passes the public suite, or refuses in the sentence that docs/howto/networks.md shows."""

import itertools
import re
from pathlib import Path

import pytest
from tests.menagerie import MENAGERIE

from choral.base.errors import ConversionError, InputError
from choral.recipes import METHODS, make
from choral.testing import CHECKS
from choral.testing.problems import CALM

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "networks.md"
REFUSED = {
    (kind, name): why for kind, name, why in re.findall(r"^\| ([a-z ]+) \| (\w+) \| (.+) \|$", PAGE.read_text(), re.M)
    if name != "method"
}  # fmt: skip
TAKEN = [pair for pair in itertools.product(MENAGERIE, METHODS) if pair not in REFUSED]
SLOW = "resumes_exactly"


def brief(name):
    """Return a method with as little of everything as it takes."""
    known = METHODS[name].options
    for members, epochs in itertools.product((2, 1), (1, 2, 3, 4, 6, 8, 12, 20)):
        least = {"members": members, "draws": 2, "epochs": epochs}
        try:
            return make(name, training=CALM, **{n: v for n, v in least.items() if n in known})
        except InputError:
            continue
    raise AssertionError(f"{name} takes no budget")


def few():
    """Every kind with two methods and a check each, all methods and checks in turn."""
    checks = [c for c in CHECKS if c not in (SLOW, "is_sound")]
    for i, kind in enumerate(MENAGERIE):
        able = [name for k, name in TAKEN if k == kind]
        for k in (0, 1):
            yield kind, able[(5 * i + 13 * k) % len(able)], checks[(i + 2 * k) % len(checks)]


@pytest.mark.parametrize(("kind", "name", "check"), list(few()))
def test_a_part_of_the_suite(kind, name, check):
    CHECKS[check](brief(name), MENAGERIE[kind])


@pytest.mark.parametrize(("kind", "name"), REFUSED)
def test_what_is_refused_is_refused_before_training_in_the_sentence_shown(kind, name):
    with pytest.raises((ConversionError, InputError), match=re.escape(REFUSED[kind, name])):
        CHECKS["seed_decides"](brief(name), MENAGERIE[kind])


def test_the_page_names_kinds_and_methods_that_there_are():
    assert REFUSED
    assert set(REFUSED) <= set(itertools.product(MENAGERIE, METHODS))


@pytest.mark.full
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("kind", "name"), TAKEN)
def test_the_whole_suite(kind, name, check):
    CHECKS[check](brief(name), MENAGERIE[kind])
