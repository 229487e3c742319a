"""Folders that reports are made of, small and made once."""

import numpy as np
import pytest
from tests.report.browser import Browser

from choral import Compute, models
from choral.comparison.compare import compare
from choral.data.problems import Problem
from choral.plan import Adam
from choral.recipes.training import Training
from choral.report import write_report
from choral.tables.problems import load_problem

QUICK = Training(lr=0.005, optimizer=Adam(), batch_size=64)


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """Three methods on some of the digits, with strange and corrupted rows, and its report."""
    folder = tmp_path_factory.mktemp("comparison")
    whole = load_problem("digits")
    part = Problem(
        "digits", whole.x_train[:400], whole.y_train[:400], whole.x_test[:120], whole.y_test[:120], image_shape=(8, 8)
    )
    compare(
        lambda: models.mlp(64, 10, hidden=(16,)),
        part,
        ["single", "snapshot", "prune_and_tune"],
        budget=8,
        members=4,
        training=QUICK,
        run_dir=folder,
        compute=Compute(executor="sequential"),
        corruptions=("fog", "pixelate"),
    )
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def regression(tmp_path_factory):
    """Two methods on a line, and its report; the data's name tries to break the page."""
    folder = tmp_path_factory.mktemp("regression")
    draw = np.random.default_rng(0)
    x = draw.normal(size=(160, 2)).astype(np.float32)
    y = (x[:, 0] + 0.3 * draw.normal(size=160)).astype(np.float32)
    problem = Problem('<script>alert("1")</script> & co', x[:100], y[:100], x[100:], y[100:])
    compare(
        lambda: models.mlp(2, 2, hidden=(8,)),
        problem,
        ["single", "deep_ensemble"],
        budget=6,
        members=3,
        training=QUICK,
        run_dir=folder,
        compute=Compute(executor="sequential"),
    )
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def pages(comparison, regression, tmp_path_factory):
    """The reports of one run of each comparison, written elsewhere."""
    folder = tmp_path_factory.mktemp("pages")
    before = {p: p.stat().st_mtime_ns for p in comparison.rglob("*") if p.is_file()}
    snapshot = write_report(comparison / "snapshot", out=folder / "snapshot")
    assert {p: p.stat().st_mtime_ns for p in comparison.rglob("*") if p.is_file()} == before
    return {"snapshot": snapshot, "single": write_report(regression / "single", out=folder / "single")}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A browser; only for tests that are skipped where there is none."""
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()
