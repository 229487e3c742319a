"""The wheel holds what it needs: built, installed without its sources beside it, it runs the README's first snippet."""

import contextlib
import os
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.test_readme import agree, blocks

import choral

ROOT = Path(__file__).parent.parent
REPORT = ("page.html", "style.css", "script.js")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Site-packages of a new environment with the wheel of this tree and what README's installation brings, nothing else."""
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
    bare = folder / "bare"
    venv.create(bare, symlinks=True)
    (place,) = bare.glob("lib/python*/site-packages")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(place), str(wheel)], check=True)
    for name in sorted(required("choral", {"tables", "plots"})):
        for part in {file.parts[0] for file in metadata.files(name) or ()} - {".."}:
            source, link = Path(str(metadata.distribution(name).locate_file(part))), place / part
            if source.exists() and not link.exists():
                link.symlink_to(source)
    return place


def required(name, extras=frozenset()):
    """The distributions that one needs, and that those need, by the metadata of what is installed here."""
    found, left = set(), [(name, frozenset(extras))]
    while left:
        name, extras = left.pop()
        for text in metadata.requires(name) or ():
            need = Requirement(text)
            wanted = need.marker is None or any(need.marker.evaluate({"extra": e}) for e in ("", *extras))
            if wanted and need.name not in found:
                with contextlib.suppress(metadata.PackageNotFoundError):  # an optional part of torch
                    metadata.distribution(need.name)
                    found.add(need.name)
                    left.append((need.name, frozenset(need.extras)))
    return found


def run(place, folder, code):
    """Run code in the bare environment, and return what it prints."""
    check = f"import choral; assert choral.__file__.startswith({str(place)!r}), choral.__file__\n"
    (folder / "first.py").write_text(check + code)
    python = place.parents[2] / "bin" / "python"
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    done = subprocess.run(
        [python, "first.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_the_environment_is_bare(installed, tmp_path):
    code = "import importlib.util as u; print([n for n in ('pytest', 'ray', 'mypy', 'torchmetrics') if u.find_spec(n)])"
    assert run(installed, tmp_path, code) == "[]\n"


@pytest.mark.full
def test_the_wheel_holds_what_is_no_code_and_its_version(installed, tmp_path):
    assert all((installed / "choral" / n).exists() for n in ("py.typed", *(f"report/{n}" for n in REPORT)))
    assert run(installed, tmp_path, "print(choral.__version__)") == f"{choral.__version__}\n"


@pytest.mark.full
def test_the_wheel_runs_the_first_snippet_of_the_readme(installed, tmp_path):
    agree(run(installed, tmp_path, blocks("README.md", "python")[0]), blocks("README.md", "text")[0])
