import re

import pytest

from choral.report.markup import written
from choral.report.theme import DARK, LIGHT, inline_svg, settings, standing_files

NAME = 'a "quoted" <b> & $x$ _method_'


def draw(figure, theme):
    axes = figure.add_axes((0.2, 0.2, 0.7, 0.7))
    (line,) = axes.plot([0.9251, 0.9752], [1.2345, 1.2346], color=theme.series(2))
    line.set_gid("series:1")
    axes.set_xlabel(NAME)


@pytest.fixture(scope="module")
def svg():
    with settings():
        return written(inline_svg(draw, (300, 200), name="n", title="t", methods=["other", "plain"]))


def relative_luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((relative_luminance(one), relative_luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_color_is_a_variable_of_the_page(svg):
    assert "var(--s2)" in svg
    assert "var(--muted)" in svg
    assert not re.search(r"#[0-9a-f]{6}\b", svg)


def test_series_can_be_found_and_ids_cannot_clash(svg):
    assert '<g class="series" data-method="plain"><title>plain</title>' in svg
    assert all(found.startswith("n-") for found in re.findall(r'\bid="([^"]*)"', svg))
    assert "http" not in svg
    assert "<style" not in svg


def test_numbers_on_axes_are_not_cut(svg):
    shown = re.findall(r">([\d.]+)</text>", svg)
    assert any(len(text.split(".")[1]) >= 3 for text in shown if "." in text), shown


def test_names_are_written_as_they_are(svg):
    assert 'a "quoted" &lt;b&gt; &amp; $x$ _method_' in svg


def test_files_stand_alone_in_both_schemes():
    with settings():
        text, picture = standing_files(draw, (300, 200))
    assert "prefers-color-scheme: dark" in text
    assert LIGHT["s2"] in text
    assert DARK["s2"] in text
    assert text.startswith("<?xml")
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20]) == 600


@pytest.mark.parametrize("colors", [LIGHT, DARK])
def test_colors_can_be_read(colors):
    for name, color in colors.items():
        if name in ("ink", "muted") or (name.startswith("s") and name != "surface"):
            assert contrast(color, colors["surface"]) >= 4.5, name


def test_settings_of_the_user_are_left_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with settings():
        inline_svg(draw, (300, 200), name="n", title="t", methods=["other", "plain"])
    assert dict(matplotlib.rcParams) == before
