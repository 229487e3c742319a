"""--likelihood: every name from a file to a report, and what does not go together is one sentence."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from choral.cli.app import app
from choral.report import write_report

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
REAL = 1000 + 200 * X[:, 0] + RNG.normal(size=60)
CLASSES = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0.5)
TARGETS = {
    "categorical": CLASSES,
    "ordinal": CLASSES,
    "bernoulli": (X > 0).astype(int),
    "gaussian": REAL,
    "student_t": REAL,
    "laplace": REAL,
    "poisson": RNG.poisson(np.exp(1 + 0.5 * X[:, 0])),
    "negative_binomial": RNG.poisson(np.exp(1 + 0.5 * X[:, 0])),
    "quantiles": REAL,
}


def run(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


LONG = [pytest.param(n, marks=[] if n in ("ordinal", "poisson", "quantiles") else [pytest.mark.full]) for n in TARGETS]


@pytest.mark.parametrize("name", LONG)
def test_from_arrays_to_predictions_and_a_report(name, tmp_path):
    y = TARGETS[name]
    np.savez(tmp_path / "d.npz", x_train=X[:40], y_train=y[:40], x_test=X[40:], y_test=y[40:])
    common = ("--likelihood", name, "--budget", 4, "--members", 2, "--out", tmp_path / "run")
    done = run("fit", tmp_path / "d.npz", *common, "--json")
    assert done.exit_code == 0, done.output
    row = json.loads(done.stdout)
    assert {"nll", "pinball"} & row.keys()
    np.savez(tmp_path / "new.npz", x=X[40:])
    told = run("predict", tmp_path / "run", tmp_path / "new.npz", "--json")
    assert len(json.loads(told.stdout)) == 20
    if name not in ("bernoulli", "quantiles"):
        return
    page = write_report(tmp_path / "run").read_text()
    assert '<p class="verdict">' in page
    assert "Reliability" in page or "Coverage of intervals" in page


def test_a_column_of_a_table_is_read_as_the_likelihood_says(tmp_path):
    rows = [f"{a:.3f},{b:.3f},{c:.3f},{n}" for (a, b, c), n in zip(X, TARGETS["poisson"])]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,c,visits", *rows]))
    words = ("fit", tmp_path / "d.csv", "--target", "visits", "--budget", 4, "--members", 2, "--out", tmp_path / "run")
    done = run(*words, "--likelihood", "poisson")
    assert done.exit_code == 0, done.output
    assert "task counts: Poisson, targets counts" in done.output
    assert "read as a regression target (as asked)" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--likelihood", "poison"), "likelihood is 'poison'"),
        (("--likelihood", "poisson", "--task", "classification"), "--likelihood poisson is of a regression"),
    ],
)
def test_wrong_words_are_one_sentence(words, said, tmp_path):
    from choral.base.errors import ChoralError

    (tmp_path / "d.csv").write_text("a,y\n" + "\n".join(f"{i},{i % 7}" for i in range(40)))
    done = run("fit", tmp_path / "d.csv", "--target", "y", *words)
    assert isinstance(done.exception, ChoralError)
    assert said in str(done.exception)


def test_classes_of_words_have_the_order_that_is_given_and_it_is_said(tmp_path):
    words = np.array(["low", "Mid Level", "high"])[CLASSES]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,label", *(f"{a},{b},{w}" for (a, b, _), w in zip(X, words))]))
    plan = ("plan", "single", tmp_path / "d.csv", "--target", "label", "--likelihood", "ordinal")
    done = run(*plan, "--order", "label=low<Mid Level<high")
    assert done.exit_code == 0, done.output
    assert "ordered as low < Mid Level < high" in done.output
    told = str(run(*plan).exception)
    assert "nothing tells the order of the classes of the target 'label'" in told
    assert "--order 'label=Mid Level<high<low'" in told
    assert "where is 'Mid Level'" in str(run(*plan, "--order", "label=low<high").exception)
