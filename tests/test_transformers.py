"""A model of the transformers library, built from a config: a dict of inputs in, a ModelOutput out."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_model

import choral
from choral import recipes
from choral.base.errors import InputError
from choral.comparison.evaluation import evaluate
from choral.recipes.training import Training

transformers = pytest.importorskip("transformers")
CALM = Training(optimizer="sgd", lr=0.02, batch_size=16)
METHODS = {
    "single": recipes.single(budget=1, training=CALM),
    "deep_ensemble": recipes.deep_ensemble(budget=2, members=2, training=CALM),
    "batch_ensemble": recipes.batch_ensemble(budget=1, members=2, training=CALM),
    "prune_and_tune": recipes.prune_and_tune(budget=3, members=2, training=CALM),
    "mc_dropout": recipes.mc_dropout(budget=1, draws=2, training=CALM),
    "bnn": recipes.bnn(budget=1, draws=2, training=CALM),
    "sequential_anchored": recipes.sequential_anchored(budget=2, members=2, training=CALM),
}


def build():
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


G = torch.Generator().manual_seed(0)
X = {
    "input_ids": torch.randint(1, 20, (20, 6), generator=G),
    "attention_mask": (torch.arange(6) < torch.randint(3, 7, (20, 1), generator=G)).long(),
}
Y = (X["input_ids"][:, 0] > 9).long()


class Stop(Exception):
    pass


def stopping(after):
    def hear(event):
        nonlocal after
        after -= 1
        if after < 0:
            raise Stop

    return hear


QUICK = ("deep_ensemble",)


@pytest.mark.parametrize("method", [pytest.param(m, marks=() if m in QUICK else pytest.mark.full) for m in METHODS])
def test_through_fit_resume_save_and_judge(method, tmp_path):
    data = X | {"labels": Y}
    options = {"target": "labels", "output": "logits", "compute": choral.Compute(executor="sequential")}
    whole = choral.fit(build, data, METHODS[method], run_dir=tmp_path / "whole", **options)
    with pytest.raises(Stop):
        choral.fit(
            build,
            data,
            METHODS[method],
            run_dir=tmp_path / "broken",
            callbacks=stopping(2),
            **options | {"compute": replace(options["compute"], checkpoint_seconds=0)},
        )
    choral.fit(build, data, METHODS[method], run_dir=tmp_path / "broken", **options)
    one, other = ({p.name: p.read_bytes() for p in (tmp_path / d / "members").iterdir()} for d in ("whole", "broken"))
    assert one == other
    whole.save(tmp_path / "e.choral")
    loaded = choral.load(tmp_path / "e.choral", build)
    assert torch.equal(loaded.outputs(X), whole.outputs(X))
    assert 0 <= evaluate(loaded, X, Y)["scores"]["accuracy"] <= 1
    assert loaded.member(0)(**X).logits.shape == (20, 2)


def test_stacked_where_its_masks_do_not_look_at_values():
    recipe = METHODS["deep_ensemble"]
    with pytest.raises(
        InputError, match=r"executor='vectorized' cannot .*in 'bert' \(BertModel\), .*use executor='sequential'"
    ):
        choral.fit(build, (X, Y), recipe, output="logits", compute=choral.Compute(executor="vectorized"))
    x = {"input_ids": X["input_ids"]}
    one, many = (
        choral.fit(build, (x, Y), recipe, output="logits", compute=choral.Compute(executor=e))
        for e in ("sequential", "vectorized")
    )
    assert torch.allclose(one.outputs(x), many.outputs(x), atol=1e-4)


def test_without_a_picked_output_the_names_are_said():
    with pytest.raises(InputError, match=r"SequenceClassifierOutput with 'logits'; .*output='logits'"):
        choral.fit(build, (X, Y), METHODS["single"])


class Rows(torch.utils.data.Dataset):
    """Items as the Trainer of transformers takes them: labels among the inputs."""

    def __len__(self):
        return len(Y)

    def __getitem__(self, index):
        return {name: values[index] for name, values in X.items()} | {"labels": Y[index]}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # what another library warns of is its own affair
def test_models_of_a_trainer_run_make_an_ensemble(tmp_path):
    pytest.importorskip("accelerate")
    models = []
    for seed in range(3):
        transformers.set_seed(seed)
        settings = transformers.TrainingArguments(
            output_dir=str(tmp_path / str(seed)), max_steps=3, per_device_train_batch_size=10, learning_rate=0.01, seed=seed,
            report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=True, logging_strategy="no",
        )  # fmt: skip
        trainer = transformers.Trainer(model=build(), args=settings, train_dataset=Rows())
        trainer.train()
        models.append(trainer.model)
    ensemble = choral.ensemble_of(models, data=(X, Y), output="logits")
    with torch.no_grad():
        wanted = torch.stack([model.eval()(**X).logits for model in models])
    torch.testing.assert_close(ensemble.outputs(X), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ensemble.predict(X).probs, wanted.softmax(-1).mean(0), rtol=1e-4, atol=1e-6)
    assert ensemble.predict(X).mutual_information.max() > 0
    assert evaluate(ensemble, X, Y)["members"] == 3
    ensemble.calibrated(X, Y).save(tmp_path / "e.choral")
    with pytest.raises(choral.ChoralError, match=r"outermost module was .*;.*check_build=False"):
        choral.load(
            tmp_path / "e.choral", build=build
        )  # the first call with labels writes the kind of problem into the config
    again = choral.load(tmp_path / "e.choral", build=build, check_build=False)
    assert torch.equal(again.outputs(X), ensemble.outputs(X))
    files = [tmp_path / f"{i}.safetensors" for i in range(3)]
    for model, file in zip(models, files):
        save_model(model, file)
    stored = choral.ensemble_of(files, data=(X, Y), build=build, output="logits")
    assert torch.equal(stored.outputs(X), ensemble.outputs(X))


@pytest.mark.parametrize("method", ["single", "batch_ensemble"])
def test_gradient_checkpointing_is_refused(method):
    def recomputing():
        network = build()
        network.gradient_checkpointing_enable()
        return network

    with pytest.raises(InputError, match="gradient_checkpointing_disable"):
        choral.fit(recomputing, (X, Y), METHODS[method], output="logits")
