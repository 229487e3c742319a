"""The written report: its numbers, files and text, without a browser."""

import html.parser
import json
import re
import shutil

import pytest

from choral.report import write_report


def numbers(item):
    """Every number in nested dicts and lists."""
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, list):
        return {n for part in item for n in numbers(part)}
    return {float(item)} if isinstance(item, int | float) and not isinstance(item, bool) else set()


class Page(html.parser.HTMLParser):
    """Collects what a page shows and refers to; unclosed elements are counted."""

    VOID = ("meta", "link", "br", "img", "path", "use")

    def __init__(self, text):
        super().__init__()
        self.values, self.addresses, self.ids, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "data-value" in given:
            self.values.append(given["data-value"])
        if "id" in given:
            self.ids.append(given["id"])
        self.addresses += [v for k, v in attrs if k in ("src", "href", "xlink:href", "action", "srcset")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(params=["comparison", "regression"])
def folder(request):
    return request.getfixturevalue(request.param)


def test_every_number_on_the_page_is_in_report_json(folder):
    page = Page((folder / "report.html").read_text())
    known = numbers(json.loads((folder / "report.json").read_text()))
    shown = [float(v) for v in page.values if re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", v)]
    assert len(shown) > 50
    assert all(v in known for v in shown)


def test_nothing_is_fetched(folder):
    text = (folder / "report.html").read_text()
    page = Page(text)
    assert all(a.startswith(("#", "data:")) for a in page.addresses)
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert not page.open


def test_ids_are_unique(folder):
    ids = Page((folder / "report.html").read_text()).ids
    assert not [i for i in set(ids) if ids.count(i) > 1]


def test_figures_are_written_twice_and_are_whole(folder):
    names = {p.stem for p in (folder / "figures").iterdir()}
    assert {"rate", "loss", "diversity", "confidence", "size-nll", "map-pca", "pareto-train_flops"} <= names
    for name in names:
        assert (folder / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "figures" / f"{name}.svg").read_text().rstrip().endswith("</svg>")


def test_tasks_have_their_own_sections(comparison, regression):
    text = (comparison / "report.html").read_text()
    for part in (
        "ranking",
        "cost",
        "calibration",
        "strange",
        "corruption",
        "size",
        "diversity",
        "map",
        "plans",
        "training",
    ):
        assert f'<section id="{part}">' in text, part
    text = (regression / "report.html").read_text()
    assert "Intervals and their coverage" in text
    assert 'id="coverage"' in text
    assert '<section id="corruption">' not in text


def test_names_from_outside_are_text(regression):
    text = (regression / "report.html").read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_plan_trees_are_on_the_page(comparison):
    text = (comparison / "report.html").read_text()
    assert "fork into 4" in text
    assert "└ Collect()" in text


def test_a_report_can_be_written_elsewhere_and_leaves_the_folder_alone(comparison, tmp_path):
    before = {p: p.stat().st_mtime_ns for p in comparison.rglob("*") if p.is_file()}
    page = write_report(comparison / "snapshot", out=tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rows"][0]["method"] == "snapshot"
    assert {p: p.stat().st_mtime_ns for p in comparison.rglob("*") if p.is_file()} == before


def test_a_run_with_a_report_can_still_be_loaded_resumed_and_reported(comparison, tmp_path):
    import choral

    shutil.copytree(comparison / "single", tmp_path / "single")
    info = choral.load(comparison / "single").info
    first = write_report(tmp_path / "single").read_text()
    assert choral.load(tmp_path / "single").info == info
    assert write_report(tmp_path / "single").read_text() == first
