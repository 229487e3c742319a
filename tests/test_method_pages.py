"""The pages of the methods: each has all its parts, and the picture of its plan shows what the plan does."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import choral
from choral.recipes import METHODS

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))
method_pages, plan_picture = (importlib.import_module(n) for n in ("method_pages", "plan_picture"))


@pytest.mark.parametrize("name", METHODS)
def test_a_page_has_all_its_parts(name):
    page = method_pages.page(name)
    parts = (
        '<figure class="plan">',
        "$$\n",
        "**Cost**: ",
        "**Fidelity**: ",
        "## When to use it",
        "## When not to use it",
    )
    assert all(part in page for part in (*parts, "## Example", "## The plan", "## Options"))
    assert not re.search(r"\*\*(Cost|Fidelity)\*\*: *\n", page)
    assert ("**Paper**: " in page) == bool(METHODS[name].paper)


@pytest.mark.parametrize(
    ("name", "bars", "dots"), [("snapshot", 5, 5), ("deep_ensemble", 4, 4), ("prune_and_tune", 5, 4), ("packed", 4, 4)]
)
def test_a_picture_has_a_bar_for_each_training_and_a_dot_for_each_member(name, bars, dots):
    drawing = plan_picture.Drawing(choral.recipes.make(name, epochs=60))
    shapes = "".join(drawing.shapes)
    assert (shapes.count("<rect"), shapes.count("<circle")) == (
        bars,
        dots,
    )  # of forks and stripes at most four are drawn
    ends = [float(x) + float(w) for x, w in re.findall(r'<rect x="([\d.]+)" y="[^"]*" width="([\d.]+)"', shapes)]
    assert max(ends) <= drawing.end


def test_bars_are_as_long_as_their_epochs():
    drawing = plan_picture.Drawing(choral.recipes.make("prune_and_tune", epochs=60))
    widths = [float(w) for w in re.findall(r'width="([\d.]+)"', "".join(drawing.shapes))]
    assert widths[0] / widths[1] == pytest.approx(42 / 3, rel=0.01)
    assert "and 2 more" in drawing.html()
