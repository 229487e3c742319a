"""The wheel holds what it needs: built, installed without its sources beside it, it runs the README's first snippet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_readme import blocks

import choral

ROOT = Path(__file__).parent.parent
REPORT = ("page.html", "style.css", "script.js")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the wheel of this tree was installed into."""
    pytest.importorskip("pip")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    folder = tmp_path_factory.mktemp("wheel")
    wanted = ["src", "pyproject.toml", "README.md", "LICENSE"]
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *wanted], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if files.returncode:
        pytest.skip("not a clone")
    for name in filter(lambda n: (ROOT / n).is_file(), files.stdout.splitlines()):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "source")]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("choral-*.whl")
    place = folder / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(place), str(wheel)], check=True)
    return place


def run(place, folder, code):
    """Run code with the installed package alone, and return what it prints."""
    check = f"import choral; assert choral.__file__.startswith({str(place)!r}), choral.__file__\n"
    (folder / "first.py").write_text(check + code)
    environment = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "first.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_the_wheel_holds_what_is_no_code_and_its_version(installed, tmp_path):
    assert all((installed / "choral" / n).exists() for n in ("py.typed", *(f"report/{n}" for n in REPORT)))
    assert run(installed, tmp_path, "print(choral.__version__)") == f"{choral.__version__}\n"


@pytest.mark.full
def test_the_wheel_runs_the_first_snippet_of_the_readme(installed, tmp_path):
    assert run(installed, tmp_path, blocks("README.md", "python")[0]) == blocks("README.md", "text")[0]
