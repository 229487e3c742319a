"""What plan says of a budget is what fit does with it, and a budget that is too small is said."""

import json

from tests.cli.shell import choral


def test_operations_that_are_planned_are_those_that_are_counted(tmp_path):
    words = ["wine", "--budget", 4, "--validation", 0.25, "--json"]
    planned = json.loads(choral("plan", "single", *words[:1], *words[1:3], "--validation", 0.25, "--json").stdout)
    row = json.loads(choral("fit", *words, "--method", "single", "--out", tmp_path / "run").stdout)
    said = float(planned["text"].split("training: ")[1].split(" FLOPs")[0])
    assert abs(said / row["train_flops"] - 1) < 0.01  # three digits are shown


def test_a_budget_that_is_too_small_is_said_before_and_while_training(tmp_path):
    lacking = "a training of 2 epochs is 10 steps and should be 500; give epochs=100 or more for each member (budget=400), or fewer members"
    words = ["--budget", 8, "--members", 4]
    assert lacking in choral("plan", "deep_ensemble", "wine", *words, "--validation", 0).stdout
    done = choral(
        "fit", "wine", "--method", "deep_ensemble", *words, "--validation", 0, "--out", tmp_path / "run", "-q"
    )
    assert f"choral: deep_ensemble: the budget is below what the method needs: {lacking}." in done.stderr
    assert "below" not in choral("plan", "single", "wine").stdout  # what fit does of itself is enough


def test_a_method_keeps_its_optimizer_unless_another_is_typed():
    def planned(*words):
        text = choral("plan", "sebays_freeze", "wine", "--budget", 40, *words, "--json").stdout
        return json.loads(text)["tree"]

    def first(tree):
        return next(node["label"] for node in tree["children"] if node["label"].startswith("Train"))

    assert "SGD" in first(planned())
    assert "0.1" in first(planned())
    assert "Adam" in first(planned("--optimizer", "adam", "--lr", 0.004))
