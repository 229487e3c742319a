"""What a release needs says the same everywhere: versions, links of the long description, URLs, the changelog."""

import re
import runpy
import tomllib
from pathlib import Path

import choral

ROOT = Path(__file__).parent.parent
PUBLISH = runpy.run_path(str(ROOT / ".ci" / "publish.py"))


def test_every_file_names_the_version():
    assert f"\nversion: {choral.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{choral.__version__}}}" in (ROOT / "docs" / "about.md").read_text().replace("  ", " ")
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1] == choral.__version__


def test_links_of_the_long_description_are_absolute():
    text = PUBLISH["absolute"]((ROOT / "README.md").read_text(), "owner/name", "abc")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    assert all(t.startswith("https://") and ".." not in t for t in targets)
    assert "https://raw.githubusercontent.com/owner/name/abc/docs/figures/band.png" in targets
    assert "https://github.com/owner/name/actions/workflows/checks.yml/badge.svg" in targets


def test_urls_are_added_to_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text() + PUBLISH["urls"]("owner/name"))["project"]
    assert project["urls"]["Source"] == "https://github.com/owner/name"
    assert project["version"] == choral.__version__


def test_workflows_run_what_is_there():
    steps = re.findall(r"- run: (.+)", (ROOT / ".github" / "workflows" / "checks.yml").read_text())
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for s in steps for target in re.findall(r"^make (\w+)$", s))
    assert all((ROOT / name).exists() for s in steps for name in re.findall(r"(?:tests|\.ci)/\w+\.py", s))
