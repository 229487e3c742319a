"""Folders for model hubs and MLflow: the same predictions, measured results on the card, nothing that runs."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.deploy.hub import save_mlflow

X, Y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2


@pytest.fixture(scope="module")
def ensemble():
    recipe = choral.recipes.batch_ensemble(members=3, epochs=12)
    return choral.fit(lambda: models.mlp(3, 2), (X, Y), recipe, validation=None, progress=False)


def test_a_folder_gives_the_ensemble_back_and_says_what_was_measured(ensemble, tmp_path):
    scores = choral.save_pretrained(
        ensemble, tmp_path / "coins", test=(X, Y), data="coins, the same rows as in training"
    )
    assert sorted(p.name for p in (tmp_path / "coins").iterdir()) == ["README.md", "config.json", "model.safetensors"]
    again = choral.from_pretrained(tmp_path / "coins")
    assert torch.equal(again.predict(X).probs, ensemble.predict(X).probs)
    config = json.loads((tmp_path / "coins" / "config.json").read_text())
    assert config["scores"] == scores == ensemble.evaluate(X, Y)
    assert (config["model_type"], config["digest"]) == ("batch_ensemble", ensemble._digest)
    card = (tmp_path / "coins" / "README.md").read_text()
    assert f"| nll | {scores['nll']:.4g} |" in card
    assert "60 test rows" in card
    assert "the same rows as in training" in card
    yaml = pytest.importorskip("yaml")
    header = yaml.safe_load(card.split("---")[1])
    assert header["library_name"] == "choral"
    assert header["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(next(iter(scores.values())))
    choral.save_pretrained(ensemble, tmp_path / "coins")
    assert "Not measured" in (tmp_path / "coins" / "README.md").read_text()


def test_networks_of_the_users_own_take_their_code_again(tmp_path):
    own = choral.fit(lambda: nn.Linear(3, 2), (X, Y), choral.recipes.single(epochs=12), validation=None, progress=False)
    choral.save_pretrained(own, tmp_path)
    with pytest.raises(choral.ChoralError, match="factory"):
        choral.from_pretrained(tmp_path)
    assert torch.equal(choral.from_pretrained(tmp_path, lambda: nn.Linear(3, 2)).predict(X).probs, own.predict(X).probs)


def test_names_that_are_no_folder_are_downloaded(ensemble, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    choral.save_pretrained(ensemble, tmp_path / "coins")
    asked = []

    def fetched(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(tmp_path / "coins")

    monkeypatch.setattr(hub, "snapshot_download", fetched)
    assert torch.equal(choral.from_pretrained("someone/coins").predict(X).probs, ensemble.predict(X).probs)
    assert asked == [("someone/coins", ["model.safetensors", "config.json", "README.md"])]
    with pytest.raises(choral.ChoralError, match="does not exist"):
        choral.from_pretrained("./nowhere")


@pytest.mark.filterwarnings("ignore")  # of MLflow's own modules
def test_mlflow_predicts_data_frames(ensemble, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    save_mlflow(ensemble, tmp_path / "model", test=(X, Y))
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    right = ensemble.predict(X).to_frame()
    for given in (X.numpy(), pandas.DataFrame(X.numpy(), columns=["a", "b", "c"])):
        pandas.testing.assert_frame_equal(loaded.predict(given), right)
    assert not list((tmp_path / "model").rglob("*.pkl"))
    frame = pandas.DataFrame({"a": np.arange(60.0), "y": X[:, 0].numpy()})
    table = choral.fit_table(frame, "y", method="single", epochs=4, progress=False)
    save_mlflow(table, tmp_path / "table")
    found = mlflow.pyfunc.load_model(str(tmp_path / "table")).predict(frame[["a"]])
    pandas.testing.assert_frame_equal(found, table.predict(frame[["a"]]).to_frame())
