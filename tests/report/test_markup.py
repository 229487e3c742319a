import re
from html.parser import HTMLParser
from xml.etree.ElementTree import fromstring

import pytest

from choral.base.text import short, visible
from choral.report.markup import element, policy, rules_of, written

HOSTILE = [
    "<script>x</script>",
    '"><img src=x onerror=y>',
    "' onload=z",
    "</p><p>",
    "<!-- -->",
    "&lt;",
    "&#60;b>",
    "{{}}",
]


class Seen(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_an_element_is_text_wherever_it_stands(name):
    page = Seen(written(element("p", name, element("b", name), name, title=name, data_method=name)))
    assert page.elements == [("p", {"title": name, "data-method": name}), ("b", {})]
    assert page.text == name * 3
    assert fromstring(written(element("p", name, title=name))).get("title") == name  # XML reads the same


def test_lists_numbers_and_nothing_go_inside():
    assert written(element("p", ["a", [1, None, (0.5,)]], hidden=True, id=None, open=False)) == '<p hidden="">a10.5</p>'


def test_characters_that_steer_are_shown_as_such():
    page = written(element("p", "a\x00b\x1b[31m\u202ec\ud800", title="\x07"))
    assert page == '<p title="�">a�b�[31m�c�</p>'
    assert page.encode()
    assert visible("two\nlines\tat most") == "two\nlines\tat most"


def test_long_names_keep_both_ends():
    assert short("name") == "name"
    assert short("a\nb\u2028c") == "a b�c"
    assert len(short("x" * 10_000 + "end")) <= 60
    assert short("x" * 10_000 + "end").endswith("end")


@pytest.mark.parametrize(
    "wrong",
    [
        element("p", onclick="x"),
        element("a", href="javascript:x"),
        element("a", href="https://example.org"),
        element("script", "a</script>b"),
        element("style", "<!--"),
        element("p q"),
        element("p", **{"a b": "x"}),
    ],
)
def test_our_own_mistakes_are_stopped(wrong):
    with pytest.raises(AssertionError):
        written(wrong)


def test_style_attributes_become_classes():
    page = element("p", element("b", style="color: red", class_="x"), element("i", style="color: red"))
    assert rules_of(page) == ".k0 { color: red }"
    assert written(page) == '<p><b class="x k0"></b><i class="k0"></i></p>'
    with pytest.raises(AssertionError):
        rules_of(element("p", style="} body { color: red"))


def test_the_policy_lets_only_what_it_hashed_in():
    found = policy(script="a", style="b")
    assert found.startswith("default-src 'none'; script-src 'sha256-ypeBEsobvcr6wjGzmiPcTaeG7/gUfE5yuYB3ha/uSLs='")
    assert "unsafe" not in found
    assert re.search(r"style-src 'sha256-[^' ]+'; img-src data:", found)
