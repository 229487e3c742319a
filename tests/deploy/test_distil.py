"""Distil: one network reproduces what an ensemble predicts, and its split into noise and disagreement."""

import importlib.util
import itertools

import numpy as np
import pytest
import torch
from torch.distributions import Dirichlet, Normal, kl_divergence
from torch.utils.data import TensorDataset

import choral
from choral import Training, models
from choral.deploy.distil import _classes, _numbers
from choral.objectives.likelihoods import About, SoftClasses, SoftGaussian, TargetScale
from choral.objectives.likelihoods.distilled import digamma, expected_entropy, matching_precision
from choral.plan import Adam

LONG = Training(lr=0.01, optimizer=Adam(), batch_size=64, schedule="cosine")


def net(outputs, inputs=2):
    return lambda: models.mlp(inputs, outputs, hidden=(32,))


def blobs(rows=192):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(rows) % 3
    middles = torch.tensor([[0.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    return middles[y] + 0.8 * torch.randn(rows, 2, generator=generator), y


def line(rows=192):
    x = torch.linspace(-2, 2, rows).unsqueeze(1)
    noise = torch.randn(rows, generator=torch.Generator().manual_seed(1))
    return x, 10 + 4 * x[:, 0] + (0.3 + 0.2 * x[:, 0].abs()) * noise


@pytest.fixture(scope="module")
def classes():
    data = blobs()
    return choral.fit(net(3), data, choral.recipes.deep_ensemble(members=4, epochs=30, training=LONG), progress=False)


@pytest.fixture(scope="module")
def numbers():
    data = line()
    return choral.fit(
        net(2, 1), data, choral.recipes.deep_ensemble(members=4, epochs=40, training=LONG), progress=False
    )


def long(epochs=300):
    return choral.recipes.single(epochs=epochs, training=LONG)


@pytest.fixture(scope="module")
def distilled(classes):
    return choral.distil(classes, net(3), blobs(), long(), progress=False)


def test_digamma_is_that_of_torch():
    x = torch.cat([torch.linspace(1, 30, 500), torch.logspace(1.5, 9, 100)]).double()
    assert torch.allclose(digamma(x), x.digamma(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("precision", [0.5, 3.0, 200.0])
def test_the_split_of_a_dirichlet_is_that_of_its_draws(precision):
    probs = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    drawn = Dirichlet(precision * probs[0]).sample((200_000,))
    sampled = torch.special.entr(drawn).sum(-1).mean()
    found = SoftClasses(level=0.0).predict((precision * probs).log().unsqueeze(0), About())
    assert float(found.aleatoric) == pytest.approx(float(sampled), abs=4e-3)
    assert torch.allclose(found.probs, probs)
    assert torch.allclose(found.entropy, found.aleatoric + found.epistemic)
    assert float(found.epistemic) > 0


def test_matching_precision_inverts_the_mutual_information():
    probs = torch.rand(20, 4, generator=torch.Generator().manual_seed(0)).softmax(-1).double()
    precision = torch.logspace(-1, 4, 20, dtype=torch.float64).unsqueeze(1)
    epistemic = torch.special.entr(probs).sum(-1) - expected_entropy(probs, precision, -1)
    assert torch.allclose(matching_precision(probs, epistemic, -1), precision.log(), atol=1e-5)


def test_the_taught_moments_are_a_minimum_of_the_losses(classes, numbers):
    for teacher, x, taught in ((classes, blobs()[0], _classes), (numbers, line()[0], _numbers)):
        targets, likelihood = taught(teacher._predictive(x), True, *([()] if taught is _numbers else []))
        if isinstance(likelihood, SoftClasses):
            logs = targets[:, :-1].log()
            outputs = logs - logs.logsumexp(-1, keepdim=True) + targets[:, -1:]
        else:
            outputs = targets
        outputs = outputs.double().unsqueeze(0).requires_grad_()
        gradient = torch.autograd.grad(likelihood.nll(outputs, targets.double().unsqueeze(0)).sum(), outputs)[0]
        assert float(gradient.abs().max()) < 1e-5
        said, right = likelihood.predict(outputs.detach(), About()), teacher._predictive(x)
        for name in ("mean", "aleatoric", "epistemic"):
            assert torch.allclose(getattr(said, name), getattr(right, name).double(), atol=1e-4, rtol=1e-3), name


def test_the_gaussian_loss_is_the_divergence_near_its_minimum():
    likelihood = SoftGaussian(scale=TargetScale(mean=(0.0,), std=(1.0,)), level=(0.5,))
    right = torch.tensor([[[0.3, 0.2]]], dtype=torch.float64)
    near = right + torch.tensor([0.01, 0.02], dtype=torch.float64)
    p, q = (Normal(v[..., :1], (v[..., 1:] + 0.5).exp().sqrt()) for v in (right, near))
    assert float(likelihood.nll(near, right)) == pytest.approx(float(kl_divergence(p, q)), rel=0.03)


def test_a_network_of_the_members_own_kind_reproduces_probabilities_and_split(classes, distilled):
    x, y = blobs(300)
    found, right = distilled.predict(x), classes.predict(x)
    assert float((found.probs - right.probs).abs().mean()) < 0.02
    assert torch.allclose(found.entropy, found.expected_entropy + found.mutual_information, atol=1e-5)
    pair = torch.stack([found.mutual_information, right.mutual_information]).log()
    assert float(torch.corrcoef(pair)[0, 1]) > 0.8
    assert float(found.mutual_information.mean()) == pytest.approx(float(right.mutual_information.mean()), rel=0.4)
    assert found.scores(y)["nll"] == pytest.approx(right.scores(y)["nll"], abs=0.04)


def test_without_a_split_all_is_aleatoric(classes):
    plain = choral.distil(classes, net(3), blobs()[0], long(60), split=False, progress=False)
    found = plain.predict(blobs()[0])
    assert float(found.mutual_information.abs().max()) == 0
    assert float((found.probs - classes.predict(blobs()[0]).probs).abs().mean()) < 0.05


def test_numbers_have_the_mean_and_both_deviations_of_the_ensemble(numbers):
    x, y = line()
    student = choral.distil(numbers, net(3, 1), x, long(), progress=False)
    found, right = student.predict(x), numbers.predict(x)
    assert found.mean.shape == right.mean.shape == y.shape
    assert float((found.mean - right.mean).abs().mean()) < 0.1
    for name in ("aleatoric_std", "epistemic_std", "std"):
        ratio = getattr(found, name) / getattr(right, name)
        assert float(ratio.log().abs().mean()) < (0.4 if name == "epistemic_std" else 0.1), name
    share = found.epistemic_std.square().mean() / right.epistemic_std.square().mean()
    assert float(share) == pytest.approx(1, abs=0.2)
    assert student.evaluate(x, y)["nll"] == pytest.approx(numbers.evaluate(x, y)["nll"], abs=0.05)
    with pytest.raises(choral.ChoralError, match="2 variance"):
        choral.distil(numbers, net(2, 1), x, long(1), progress=False)


def test_it_is_saved_exported_calibrated_and_resumed_like_an_ensemble(classes, distilled, tmp_path):
    x, y = blobs()
    right = distilled.predict(x)
    distilled.save(tmp_path / "one.choral")
    for again in (choral.load(tmp_path / "one.choral"), distilled.calibrated(x, y, level=0.9).with_posthoc()):
        assert torch.equal(again.predict(x).mutual_information, right.mutual_information)
    distilled.export(tmp_path / "one.pt2")
    graph = torch.export.load(tmp_path / "one.pt2").module()
    assert torch.allclose(graph(x)["mutual_information"], right.mutual_information, atol=1e-5)
    if importlib.util.find_spec("onnxscript") and importlib.util.find_spec("onnxruntime"):
        distilled.export(tmp_path / "one.onnx")  # which compares it with predict
    warm = distilled.calibrated(x, y, temperature="ensemble")
    sums = [e._predictive(x).logits.logsumexp(-1) for e in (warm, distilled)]
    assert torch.allclose(*sums, atol=1e-4)  # a temperature leaves the precision alone
    runs = [choral.distil(classes, net(3), x, long(4), run_dir=tmp_path / "run", progress=False) for _ in range(2)]
    assert torch.equal(runs[0].predict(x).probs, runs[1].predict(x).probs)
    assert torch.equal(choral.load(tmp_path / "run").predict(x).probs, runs[0].predict(x).probs)


def test_datasets_labels_validation_and_frames(classes):
    x, y = blobs()
    once = long(4)
    made = [choral.distil(classes, net(3), data, once, progress=False) for data in (x, (x, y), TensorDataset(x, y))]
    for one, other in itertools.pairwise(made):
        assert torch.allclose(one.predict(x).probs, other.predict(x).probs, atol=1e-6)
    watched = choral.distil(classes, net(3), x, once, validation=(x, y), progress=False)
    assert watched.info["validation_rows"] == len(x)
    counts = choral.fit(net(1), (x, y), once, likelihood="poisson", progress=False)
    with pytest.raises(choral.ChoralError, match="counts"):
        choral.distil(counts, net(3), x, once, progress=False)
    with pytest.raises(choral.ChoralError, match="shape"):
        choral.distil(classes, net(4), x, once, progress=False)


def test_tables_stay_tables():
    pandas = pytest.importorskip("pandas")
    generator = np.random.default_rng(0)
    frame = pandas.DataFrame({"a": generator.normal(size=120), "kind": generator.choice(["u", "v"], 120)})
    frame["y"] = frame["a"] * 2 + (frame["kind"] == "u")
    from choral.tables.fit import fit_table

    teacher = fit_table(frame, "y", method="deep_ensemble", members=2, epochs=8, progress=False)
    width = teacher.table.inputs(frame).shape[1]
    student = choral.distil(teacher, net(3, width), frame, long(3), progress=False)
    assert len(student.predict(frame.drop(columns="y")).to_frame()) == 120
