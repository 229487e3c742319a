"""The written report: its numbers, files and text, without a browser."""

import html
import html.parser
import json
import re
import shutil
import statistics

import numpy as np
import pytest

from choral.comparison.comparison import difference
from choral.report import page, write_report
from choral.report.content import collect
from choral.report.figures import DARK, LIGHT, settings
from choral.report.page import _MARKS as MARKS
from choral.report.page import sections_of, shown


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
    assert len(shown) > 40
    assert all(v in known for v in shown)


LINK = re.compile(r'<a href="https://arxiv\.org/abs/\d{4}\.\d{4,5}" rel="noreferrer">')


def test_methods_link_to_their_papers(comparison):
    held = LINK.findall((comparison / "report.html").read_text())
    assert any("1704.00109" in link for link in held)  # of snapshot


def test_nothing_is_fetched(folder):
    text = LINK.sub("<a>", (folder / "report.html").read_text())  # a link is followed by people alone
    page = Page(text)
    assert all(a.startswith(("#", "data:")) for a in page.addresses)
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert not page.open


def test_ids_are_unique(folder):
    ids = Page((folder / "report.html").read_text()).ids
    assert not [i for i in set(ids) if ids.count(i) > 1]


def test_figures_are_written_as_svg_and_large_ones_as_png(folder):
    names = {p.stem for p in (folder / "figures").iterdir()}
    assert {"risk", "histograms-0", "loss-0", "size-nll", "cost-predict_flops"} <= names
    for name in names:
        text = (folder / "figures" / f"{name}.svg").read_text()
        assert "prefers-color-scheme: dark" in text
        assert text.rstrip().endswith("</svg>")
    assert (folder / "figures" / "size-nll.png").read_bytes().startswith(b"\x89PNG")


def test_tasks_have_their_own_sections(comparison, regression, pages):
    text = (comparison / "report.html").read_text()
    for part in ("grid", "calibration", "classes", "ood", "corruption", "size", "agreement", "engine"):
        assert f'<section id="{part}">' in text, part
    text = (regression / "report.html").read_text()
    for part in ("grid", "predictions", "coverage", "size"):
        assert f'<section id="{part}">' in text, part
    assert '<section id="corruption">' not in text
    text = pages["single"].read_text()
    for figure in ("predicted", "residuals", "intervals", "pit", "risk"):
        assert f'<figure id="{figure}">' in text, figure
    assert '<section id="worst">' in text


def test_names_from_outside_are_text(regression):
    text = (regression / "report.html").read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_plan_trees_are_on_the_page(comparison):
    text = (comparison / "report.html").read_text()
    assert "fork into 4" in text
    assert "└ Collect()" in text


def test_a_report_can_be_written_elsewhere(pages):
    """That it leaves the folder alone is looked at where it is written."""
    assert pages["snapshot"].name == "report.html"
    assert json.loads(pages["snapshot"].with_suffix(".json").read_text())["rows"][0]["method"] == "snapshot"


def test_a_run_with_a_report_can_still_be_loaded_and_reported_and_settings_are_left_alone(comparison, tmp_path):
    import matplotlib

    import choral

    shutil.copytree(comparison / "single", tmp_path / "single")
    info, before = choral.load(comparison / "single").info, dict(matplotlib.rcParams)
    first = write_report(tmp_path / "single").read_text()
    assert choral.load(tmp_path / "single").info == info
    assert dict(matplotlib.rcParams) == before
    assert write_report(tmp_path / "single").read_text() == first


def verdict_of(page):
    return re.search(r'<p class="verdict">(.*?)</p>', page.read_text()).group(1)


def test_the_page_begins_with_the_verdict(comparison, regression, pages):
    found = json.loads((comparison / "comparison.json").read_text())
    assert html.unescape(verdict_of(comparison / "report.html")) == found["findings"][0]
    row = next(r for r in found["rows"] if r["method"] == "snapshot")
    assert f"predicted correctly in {row['accuracy']:.1%} of 120 test rows" in verdict_of(pages["snapshot"])
    mae = next(r for r in json.loads((regression / "comparison.json").read_text())["rows"] if r["method"] == "single")[
        "mae"
    ]
    assert f"to within {float(f'{mae:.3g}'):g} on average (60 test rows)" in verdict_of(pages["single"])


def test_diagnostics_are_folded_and_the_run_is_named(comparison):
    text = (comparison / "report.html").read_text()
    assert '<section id="engine">\n<details><summary>' in text
    made = json.loads((comparison / "single" / "plan.json").read_text())["made"]
    assert made["date"] in text
    assert html.escape(made["command"][:40], quote=True).replace("&#x27;", "&#39;") in text


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Two methods over three seeds, and its content."""
    from tests.report.conftest import QUICK

    from choral import compare, models
    from choral.tables.problems import load_problem

    folder, part = tmp_path_factory.mktemp("seeds"), load_problem("wine")
    found = compare(
        lambda: models.mlp(13, 3, hidden=(8,)), part, ["single", "deep_ensemble"],
        budget=6, members=3, training=QUICK, seed=(0, 1, 2), run_dir=folder,
    )  # fmt: skip
    return folder, found


def test_the_grid_shows_means_spread_and_what_differs_beyond_noise(seeds):
    folder, found = seeds
    text = write_report(folder).read_text()
    grid = text[text.index('id="grid"') : text.index("</section>")]
    for row in found.rows:
        for name in ("nll", "accuracy", "ece", "ood_auroc"):
            spread = shown(found.deviations[row["method"]][name])
            assert f"{shown(row[name])} ± {spread}" in grid
    by_seed = found.details["by_seed"].values()
    own, other = (
        [next(r["nll"] for r in rows if r["method"] == m) for rows in by_seed] for m in ("deep_ensemble", "single")
    )
    word = difference("nll", own, other).word
    title = "within noise of single" if word == "level" else f"{word} than single"
    assert f'class="{word}" title="{title}">{MARKS[word]} {shown(found.rows[1]["nll"])}' in grid
    assert "means over 3 seeds" in text


def test_curves_are_means_over_seeds(seeds):
    content = collect(seeds[0])
    assert len(content.parts("single", "risk")) == 3
    first = json.loads((seeds[0] / "seed-2" / "single" / "evaluation.json").read_text())["evaluation"]["single"]
    assert content.parts("single", "risk")[2] == first["risk"]
    assert content.results["history"]["single"]["loss"]


def test_tables_and_histograms_are_means_over_seeds(seeds):
    content = collect(seeds[0])
    (section,) = page._strange(content, content.methods)
    (table,) = section.parts[0].tables
    cells = dict(table.rows)["deep_ensemble"]
    for name, cell in zip(table.head[1:], cells):
        each = [part["scores"][name.replace(" ", "_")]["auroc"] for part in content.parts("deep_ensemble", "ood")]
        assert len(each) == 3
        assert cell.value == pytest.approx(statistics.fmean(each))
    assert len(set(each)) > 1
    assert "first seed" not in (seeds[0] / "report.html").read_text().lower()


def test_histograms_of_seeds_are_averaged_in_common_bins():
    one = {"of": "entropy", "edges": [1, 10, 100], "in": [0.25, 0.75]}
    two = {"of": "entropy", "edges": [10, 100, 1000], "in": [0.5, 0.5]}
    same = page._histogram([one], np.array([1, 10, 100]))
    assert same["in"] == pytest.approx(one["in"])
    assert "out" not in same
    both = page._histogram([one, two], np.array([1, 10, 100, 1000]))
    assert both["in"] == pytest.approx([0.125, 0.625, 0.25])


def test_costs_that_are_equal_by_construction_are_not_drawn(seeds):
    assert not (seeds[0] / "figures" / "cost-train_flops.svg").exists()
    assert (seeds[0] / "figures" / "cost-predict_flops.svg").exists()


def relative_luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colors", [LIGHT, DARK])
def test_colors_can_be_read(colors):
    for name, color in colors.items():
        light, dark = sorted((relative_luminance(color), relative_luminance(colors["surface"])), reverse=True)
        assert name in ("grid", "surface") or (light + 0.05) / (dark + 0.05) >= 4.5, name


@pytest.mark.parametrize("folder", ["comparison", pytest.param("regression", marks=pytest.mark.full)], indirect=True)
def test_every_color_of_a_figure_is_a_variable_and_every_axis_has_a_label(folder):
    text = (folder / "report.html").read_text()
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"\.k\d+ {[^}]*#[0-9a-f]{6}", style)
    with settings():
        for section in sections_of(collect(folder)):
            for drawn in section.pictures:
                for axes in drawn.figure.axes[:1]:
                    assert axes.get_xlabel(), drawn.name
                    assert axes.get_ylabel() or drawn.name.startswith(("importance", "dependence")), drawn.name
