"""The first screen says in words what was found, and only words."""

import pytest

from choral.report.content import Content
from choral.report.markup import written
from choral.report.page import found_in_words


def content(findings):
    return Content("t", {"rows": [], "settings": {}, "ranking": [], "findings": findings}, {})


def test_what_was_found_is_said_first():
    shown = written(found_in_words(content(["Use packed: <best>.", "packed beside single: better in likelihood."])))
    assert "Use packed: &lt;best&gt;." in shown
    assert shown.index("Use packed") < shown.index("beside single")


@pytest.mark.parametrize("odd", [None, [], "Use me", [1], [["a"]], {"a": 1}, 7])
def test_what_is_no_list_of_sentences_is_left_out(odd):
    assert found_in_words(content(odd)) is None
