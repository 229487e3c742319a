"""Names and values from outside: they are shown, never obeyed, and never end in a traceback."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest
from tests.report.browser import executable

from choral.base.errors import RunError
from choral.engine.files import read_json, write_json
from choral.report import write_report
from choral.report.content import collect
from choral.report.figures import settings
from choral.report.page import DASH, render, sections_of

NAMES = {
    "script": "<script>window.hit=1</script>",
    "image": '"><img src=x onerror=window.hit=1>',
    "load": "' onload=window.hit=1 x='",
    "backslash": r"lr\d \1 \g<0> \n",
    "braces": "{{}} {0} %s ${x}",
    "end": "</script></style></title></svg><script>window.hit=1</script>",
    "comment": "<!-- --> ]]> <![CDATA[",
    "css": "x; } * { display: none } url(https://example.org/x)",
    "steering": "\u202egnp.exe \x00\x1b[31m\x07\r\n\ud800\uffff",
    "long": "n" * 10_000,
    "color": "#1d2430 0.123456",
    "chinese": "集成 $x^2$ _m_",
}

SOME = [pytest.param(kind, marks=() if i % 4 == 0 else pytest.mark.full) for i, kind in enumerate(NAMES)]
OTHERS = [pytest.param(kind, marks=() if i % 4 == 1 else pytest.mark.full) for i, kind in enumerate(NAMES)]

WITHOUT_VALUE = {("td", ()), ("b", ())}


def keep(path: Path, change) -> None:
    held = read_json(path)
    write_json(path, change(held) or held)


def renamed(comparison: Path, folder: Path, name: str) -> Path:
    """Copy a comparison in which everything that can be named, is named so."""
    shutil.copytree(comparison, folder)
    held = read_json(folder / "comparison.json") or {}
    called = {r["method"]: f"{name} {i}" for i, r in enumerate(held["rows"])}
    held["rows"] = [r | {"method": called[r["method"]]} for r in held["rows"]]
    held["evaluation"] = {called[m]: e for m, e in held["evaluation"].items()}
    for found in held["evaluation"].values():
        found["ood"]["name"] = name
        found["histograms"]["of"] = name
        found["scores"][name] = name
        found["ood"]["scores"] |= {name: {name: 1.0}}
        found["corruptions"]["table"] |= {name: []}
    held["settings"] |= {"data": name, name: name, "nested": {"kind": name, name: [name]}}
    write_json(folder / "comparison.json", held)
    for method, other in called.items():
        run = folder / method
        keep(run / "plan.json", lambda plan: hostile_plan(plan, name))
        with open(run / "log.jsonl", "a") as log:
            log.write(json.dumps({"kind": "operator", "name": name, "path": name, "density": name}) + "\n")
            log.write(json.dumps({"kind": "epoch", "epoch": name, "losses": [name], "counted": {name: name}}) + "\n")
        fits = len(other) < 200 and not set("/\0") & set(other) and "\ud800" not in other
        run.rename(folder / other) if fits else None
    return folder


def hostile_plan(plan, name):
    plan["describe"] |= {"name": name, "members": name}
    plan["describe"]["tree"] |= {"label": name}
    plan["made"] = {"date": name, "command": name, "choral": name}
    plan["environment"] |= {name: name, "torch": name}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.kinds, self.values, self.texts = set(), {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.kinds.add((tag, tuple(sorted(k for k, _ in attrs))))
        for key, value in attrs:
            self.values.setdefault(key, set()).add(value)

    def handle_data(self, data):
        self.texts.append(data)


def rendered(folder: Path) -> str:
    with settings():
        content = collect(folder)
        return render(content, list(sections_of(content)))


@pytest.fixture(scope="module")
def plain(comparison):
    return Page(rendered(comparison))


@pytest.fixture(scope="module")
def plain_run(comparison):
    return Page(rendered(comparison / "single"))


@pytest.mark.parametrize("kind", SOME)
def test_no_element_or_attribute_comes_from_a_name(comparison, plain, tmp_path, kind):
    page = Page(rendered(renamed(comparison, tmp_path / "c", NAMES[kind])))
    assert page.kinds <= plain.kinds | WITHOUT_VALUE
    for attribute in ("id", "href", "class", "role", "rel", "clip-path", "http-equiv"):
        held, known = (
            {re.sub(r"-[mpC][0-9a-f_]+", "", v) for v in p.values[attribute]}
            for p in (page, plain)  # digests of shapes
        )
        strange = held - known
        assert not {
            v
            for v in strange
            if not set(v.split()) <= {f"k{i}" for i in range(300)} | {"dot", "chip", "t0", "t1", "t2"}
        }
    assert any(v.startswith(NAMES[kind][:3].replace("\u202e", "�")) for v in page.values["data-method"])


@pytest.mark.parametrize("kind", OTHERS)
def test_a_run_and_its_folder_may_have_any_name(comparison, plain_run, tmp_path, kind):
    name = NAMES[kind]
    folder = tmp_path / name.replace("/", "\u2215").replace("\0", "")[:60].encode(errors="ignore").decode()
    shutil.copytree(comparison / "single", folder)
    keep(folder / "plan.json", lambda plan: hostile_plan(plan, name))
    page = Page(rendered(folder))
    assert page.kinds <= plain_run.kinds | WITHOUT_VALUE
    assert any(name[:3].replace("\u202e", "�") in t for t in page.texts)


def test_files_of_figures_are_whole_whatever_the_name(comparison, tmp_path):
    shutil.copytree(comparison, tmp_path / "c")
    wanted = iter([NAMES["end"], NAMES["steering"], NAMES["backslash"]])
    keep(
        tmp_path / "c" / "comparison.json", lambda held: [r.update(method=next(wanted)) for r in held["rows"]] and held
    )
    page = write_report(tmp_path / "c", out=tmp_path / "out")
    assert page.read_bytes()
    for path in (tmp_path / "out" / "figures").glob("*.svg"):
        tags = {node.tag.rpartition("}")[2] for node in fromstring(path.read_bytes()).iter()}
        assert "script" not in tags


def test_a_name_is_no_way_out_of_the_folder(comparison, tmp_path):
    shutil.copytree(comparison, tmp_path / "c")
    shutil.copytree(comparison / "single", tmp_path / "elsewhere")
    keep(tmp_path / "c" / "comparison.json", lambda held: held["rows"][0].update(method="../elsewhere"))
    assert "../elsewhere" not in collect(tmp_path / "c").results["plans"]


WRONG: list[Any] = ["x", None, [], float("nan"), {}, True, 10**400]
PARTS = {
    "calibration": ("evaluation", "snapshot", "reliability", "counts"),
    "members": ("evaluation", "snapshot", "diversity", "matrix"),
    "strange": ("evaluation", "snapshot", "ood", "scores", "entropy"),
    "corrupted": ("evaluation", "snapshot", "corruptions", "levels"),
    "grid": ("by_seed",),
}


def spoilt(comparison, tmp_path, place, value):
    def change(held):
        part = held
        for step in place[:-1]:
            part = part[step]
        part[place[-1]] = value

    for entry in comparison.iterdir() if not (tmp_path / "comparison.json").exists() else ():
        if entry.name == "comparison.json":
            shutil.copy(entry, tmp_path)
        elif entry.name != "report.html":
            (tmp_path / entry.name).symlink_to(entry)
    keep(tmp_path / "comparison.json", change)
    return tmp_path


def test_a_part_that_cannot_be_made_is_left_out_and_named(comparison, tmp_path):
    for place in PARTS.values():
        spoilt(comparison, tmp_path, place, 3)
    page = Page(rendered(tmp_path))
    text = "".join(page.texts)
    named = text.split("are incomplete or damaged: ")[1].split(".")[0]
    assert set(named.split(", ")) == set(PARTS)
    assert "reliability of single" not in page.values["aria-label"]
    assert "Confusion matrix" in page.values["aria-label"]


@pytest.mark.full
@pytest.mark.parametrize("value", WRONG, ids=lambda v: repr(v)[:5])
def test_a_score_that_is_no_number_is_a_dash(comparison, tmp_path, value):
    folder = spoilt(comparison, tmp_path, ("rows", 0, "nll"), value)
    method = (read_json(folder / "comparison.json") or {})["rows"][0]["method"]
    cell = re.search(rf"{method}(?:</a>)?</th><td[^>]*>(.*?)</td>", rendered(folder))
    assert cell is not None
    assert cell[1] == ("" if value is None else DASH)


def test_a_report_does_not_take_away_what_it_cannot_show(comparison, tmp_path):
    folder = spoilt(comparison, tmp_path, ("evaluation", "snapshot", "reliability", "counts", 0), "x")
    before = read_json(folder / "comparison.json")
    (folder / "figures").unlink()
    write_report(folder)
    after = read_json(folder / "comparison.json")
    assert {k: after[k] for k in before} == before


@pytest.mark.parametrize(
    ("place", "value"),
    [(("rows",), 3), (("rows", 0), 3), (("settings",), []), (("evaluation",), "x")],
)
def test_results_that_are_no_comparison_are_refused_with_a_sentence(comparison, tmp_path, place, value):
    with pytest.raises(RunError, match="holds something else than choral writes"):
        collect(spoilt(comparison, tmp_path, place, value))


@pytest.mark.parametrize("text", ["[1]", "3", "null", "[" * 100_000, '{"a":' * 200 + "1" + "}" * 200, "{broken"])
def test_damaged_files_are_refused_with_a_sentence(tmp_path, text):
    (tmp_path / "comparison.json").write_text(text)
    with pytest.raises(RunError, match=r"comparison\.json"):
        collect(tmp_path)
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RunError):
        collect(tmp_path)


@pytest.mark.full
@pytest.mark.skipif(executable() is None, reason="no chromium here; `make browser` installs it")
@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.full)])
def test_no_name_runs_in_a_browser(browser, comparison, tmp_path, width):
    for i, name in enumerate(NAMES.values()):
        folder = renamed(comparison, tmp_path / str(i), name)
        (tmp_path / f"{i}.html").write_text(rendered(folder))
        browser.open(tmp_path / f"{i}.html", width=width)
        browser.run("document.querySelectorAll('button').forEach((b) => b.click())")
        assert browser.run("typeof window.hit") == "undefined"
        assert browser.run("document.title").endswith("3 methods compared")
        assert browser.complaints() == []
        assert browser.requests() == [(tmp_path / f"{i}.html").as_uri()]
        assert browser.run("document.documentElement.scrollWidth") == width


@pytest.mark.skipif(executable() is None, reason="no chromium here; `make browser` installs it")
def test_the_policy_stops_what_would_get_in(browser, comparison, tmp_path):
    text = (comparison / "report.html").read_text()
    bad = "<script>window.hit=1</script><img src=x onerror='window.hit=1'><p style='color: red'>"
    (tmp_path / "page.html").write_text(text.replace("<main>", f"<main>{bad}"))
    browser.open(tmp_path / "page.html", width=1440)
    assert browser.run("typeof window.hit") == "undefined"
    assert any("Content Security Policy" in c for c in browser.complaints())
