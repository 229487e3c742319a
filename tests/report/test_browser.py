"""The report in a real browser: quiet, alone, sortable, visible on a phone and on a desk."""

import pytest
from tests.report.browser import executable

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no chromium here; `make browser` installs it (Debian's package chromium)"
)


WIDTHS = [390, 1440]


@pytest.mark.parametrize(("name", "width", "dark"), [("comparison", 390, False), ("regression", 1440, True)])
def test_it_opens_without_a_complaint_or_a_request(browser, request, name, width, dark):
    page = request.getfixturevalue(name) / "report.html"
    browser.open(page, width=width, dark=dark)
    browser.run("document.querySelectorAll('button').forEach((b) => b.click())")
    assert browser.complaints() == []
    assert browser.requests() == [page.resolve().as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_sticks_out_and_every_figure_is_seen(browser, comparison, width):
    browser.open(comparison / "report.html", width=width)
    browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") == width
    sizes = browser.run(
        "[...document.querySelectorAll('figure svg')].map((s) => { const r = s.getBoundingClientRect();"
        "return [r.left, r.right, r.width, r.height]; })"
    )
    assert len(sizes) > 12
    for left, right, wide, high in sizes:
        assert left >= 0
        assert right <= width
        assert wide >= 120
        assert high >= 80
    texts = browser.run(
        "[...document.querySelectorAll('figure svg text')].filter((t) => t.textContent.trim())"
        ".map((t) => t.getBoundingClientRect().height)"
    )
    assert min(texts) >= 6  # pixels


@pytest.mark.full
@pytest.mark.parametrize("width", WIDTHS)
def test_lettering_stays_inside_its_picture_and_off_other_lettering(browser, comparison, width):
    browser.open(comparison / "report.html", width=width)
    found = browser.run("""
      [...document.querySelectorAll('figure svg')].flatMap((svg) => {
        const frame = svg.getBoundingClientRect();
        const texts = [...svg.querySelectorAll('text')].filter((t) => t.textContent.trim())
          .map((t) => ({ text: t.textContent, box: t.getBoundingClientRect() }));
        const outside = texts.filter(({ box }) => box.left < frame.left - 2 || box.right > frame.right + 2
          || box.top < frame.top - 2 || box.bottom > frame.bottom + 2).map((t) => 'outside: ' + t.text);
        const over = texts.flatMap((a, i) => texts.slice(i + 1)
          .filter((b) => a.box.left < b.box.right - 1 && b.box.left < a.box.right - 1
            && a.box.top + 3 < b.box.bottom - 3 && b.box.top + 3 < a.box.bottom - 3)
          .map((b) => 'overlap: ' + a.text + ' / ' + b.text));
        return [...outside, ...over];
      })""")
    assert found == []


def column(browser, table, number):
    return browser.run(
        f"[...document.querySelectorAll('#{table} table.sortable')[0].tBodies[0].rows]"
        f".map((r) => r.children[{number}].dataset.value ?? null)"
    )


def test_tables_sort_by_any_heading_both_ways(browser, comparison):
    browser.open(comparison / "report.html", width=1440)
    headings = browser.run("[...document.querySelectorAll('#grid thead button')].map((b) => b.textContent)")
    for number, _ in enumerate(headings):
        for turn in range(2):
            browser.run(f"document.querySelectorAll('#grid thead button')[{number}].click()")
            values = column(browser, "grid", number)
            assert len(values) == 3
            known = [v for v in values if v is not None]
            assert values[: len(known)] == known  # empty cells stay at the end
            known = known if number == 0 else [float(v) for v in known]
            assert known == sorted(known, reverse=turn == 1)
            state = browser.run(f"document.querySelectorAll('#grid thead th')[{number}].ariaSort")
            assert state == ["ascending", "descending"][turn]


@pytest.mark.full
def test_a_method_is_brought_forward_in_every_figure_and_let_go(browser, comparison):
    browser.open(comparison / "report.html", width=1440)
    faded = "[...document.querySelectorAll('#size-nll .series')].map((s) => [s.dataset.method, getComputedStyle(s).opacity])"
    browser.run("document.querySelector('nav .chip[data-method=snapshot]').click()")
    for method, opacity in browser.run(faded):
        assert (float(opacity) == 1) is (method == "snapshot")
    browser.run("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))")
    assert all(float(opacity) == 1 for _, opacity in browser.run(faded))


@pytest.mark.full
def test_the_scheme_follows_the_reader(browser, comparison):
    look = "getComputedStyle(document.querySelector('section')).backgroundColor"
    browser.open(comparison / "report.html", width=1440)
    light = browser.run(look)
    browser.open(comparison / "report.html", width=1440, dark=True)
    assert light == "rgb(255, 255, 255)"
    assert browser.run(look) == "rgb(26, 32, 41)"
    fill = "getComputedStyle(document.querySelector('#size-nll svg text')).fill"
    assert browser.run(fill) == "rgb(162, 171, 185)"


def test_the_verdict_and_the_grid_are_on_the_first_screen(browser, comparison):
    browser.open(comparison / "report.html", width=1440)
    assert browser.run("document.querySelector('.verdict').getBoundingClientRect().bottom") < 300
    assert browser.run("document.querySelector('#grid table').getBoundingClientRect().bottom") < 900
    browser.open(comparison / "report.html", width=390)
    assert browser.run("document.querySelector('#grid table').getBoundingClientRect().top") < 900


def test_diagnostics_open_on_demand(browser, comparison):
    browser.open(comparison / "report.html", width=1440)
    seen = "document.querySelector('#engine details').open"
    assert not browser.run(seen)
    browser.run("document.querySelector('#engine summary').click()")
    assert browser.run(seen)
