"""Networks and data as real users have them: right, or refused in one sentence."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import choral
from choral import recipes
from choral.base.errors import ChoralError, ConversionError, InputError, RunError
from choral.comparison.evaluation import evaluate
from choral.data import Normalize
from choral.recipes.training import Training

CALM = Training(optimizer="sgd", lr=0.02, batch_size=16)
ONE = recipes.single(budget=1, training=CALM)
TWO = recipes.deep_ensemble(budget=2, members=2, training=CALM)
G = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=G)
Y = (X[:, 0] > 0).long()
REAL = X[:, :1] * 2


def brief(method: str) -> recipes.Recipe:
    """Return a method with the least of everything."""
    known = recipes.METHODS[method].options
    for members, epochs in itertools.product((2, 1), (1, 2, 3, 4, 6, 8, 12, 20)):
        least = {"members": members, "draws": 2, "epochs": epochs}
        try:
            return recipes.make(method, training=CALM, **{n: v for n, v in least.items() if n in known})
        except InputError:
            continue
    raise AssertionError(method)


def small(outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, outputs))


class Returning(nn.Module):
    def __init__(self, change, outputs: int = 2):
        super().__init__()
        self.body, self.change = small(outputs), change

    def forward(self, x: Tensor):
        return self.change(self.body(x))


def pick_second(found):
    return found["deep"][1]


@pytest.mark.parametrize(
    ("change", "output"),
    [
        (lambda out: {"logits": out, "loss": None}, "logits"),
        (lambda out: (out.sum(), out), 1),
        (lambda out: [out], -1),
        (lambda out: {"deep": (0, out)}, pick_second),
    ],
)
def test_outputs_are_picked_and_give_the_members_of_the_plain_network(change, output, tmp_path):
    alone: Any = {
        "compute": choral.Compute(executor="sequential")
    }  # auto measures, and may choose otherwise the second time
    wanted = choral.fit(lambda: Returning(lambda out: out), (X, Y), TWO, **alone)
    found = choral.fit(lambda: Returning(change), (X, Y), TWO, output=output, run_dir=tmp_path / "run", **alone)
    assert torch.equal(found.outputs(X), wanted.outputs(X))
    found.save(tmp_path / "e.choral")
    again = {"output": output} if callable(output) else {}
    for path in ("e.choral", "run"):
        loaded = choral.load(tmp_path / path, lambda: Returning(change), **again)
        assert torch.equal(loaded.outputs(X), wanted.outputs(X))
    with pytest.raises(RunError, match=r"give it again|leave it out"):
        choral.load(tmp_path / "e.choral", lambda: Returning(change), **({} if again else {"output": len}))


def test_an_output_that_is_no_tensor_is_refused_with_the_names_there_are():
    with pytest.raises(InputError, match=r"dict with 'a', 'logits'; .*output='logits'"):
        choral.fit(lambda: Returning(lambda out: {"a": out, "logits": out}), (X, Y), ONE)
    with pytest.raises(InputError, match=r"output is 1\.5;"):
        choral.fit(small, (X, Y), ONE, output=1.5)
    with pytest.raises(InputError, match=r"outputs of shape \(2, 2\) for 2 points|outputs of shape \(4,\)"):
        choral.fit(lambda: Returning(lambda out: out.flatten()), (X, Y), ONE)


@pytest.mark.parametrize("target", [REAL, REAL[:, 0]])
@pytest.mark.parametrize("squeeze", [lambda out: out.squeeze(), lambda out: out[:, 0]])
@pytest.mark.parametrize("method", ["deep_ensemble", "batch_ensemble"])
def test_squeezed_outputs_are_columns(target, squeeze, method):
    recipe = getattr(recipes, method)(epochs=2, members=2, training=CALM)
    wanted = choral.fit(
        lambda: Returning(lambda out: out, 1), (X, REAL), recipe, compute=choral.Compute(executor="sequential")
    )
    found = choral.fit(
        lambda: Returning(squeeze, 1), (X, target), recipe, compute=choral.Compute(executor="sequential")
    )
    assert torch.allclose(found.outputs(X), wanted.outputs(X), atol=1e-6)
    assert found.predict(X[:1]).mean.shape == target[:1].shape


class Dicts(Dataset):
    def __init__(self, ragged: bool = False):
        self.ragged = ragged

    def __len__(self):
        return 40

    def __getitem__(self, i):
        length = 3 + i if self.ragged else 4
        return {"tokens": torch.arange(length) % 7, "age": X[i, :1], "label": int(Y[i])}


def padded(items):
    longest = max(len(item["tokens"]) for item in items)
    tokens = torch.zeros(len(items), longest, dtype=torch.long)
    mask = torch.zeros(len(items), longest, dtype=torch.bool)
    for i, item in enumerate(items):
        tokens[i, : len(item["tokens"])] = item["tokens"]
        mask[i, : len(item["tokens"])] = True
    return {
        "tokens": tokens,
        "mask": mask,
        "age": torch.stack([i["age"] for i in items]),
        "label": torch.tensor([i["label"] for i in items]),
    }


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(7, 5), nn.Linear(6, 2)

    def forward(self, tokens: Tensor, age: Tensor, mask: Tensor | None = None) -> Tensor:
        words = self.words(tokens)
        if mask is not None:
            words = words * mask.unsqueeze(-1)
        return self.last(torch.cat([words.sum(1), age], 1))


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_a_dataset_of_dicts(executor):
    found = choral.fit(Reader, Dicts(), TWO, target="label", compute=choral.Compute(executor=executor))
    items = [Dicts()[i] for i in range(40)]
    x = {n: torch.stack([i[n] for i in items]) for n in ("tokens", "age")}
    arrays = choral.fit(Reader, x | {"label": Y}, TWO, target="label", compute=choral.Compute(executor=executor))
    assert torch.allclose(found.outputs(x), arrays.outputs(x), atol=1e-5)
    assert torch.isfinite(found.outputs(x)).all()


def test_padding_per_batch_and_masks():
    loader = DataLoader(Dicts(ragged=True), batch_size=16, collate_fn=padded)
    found = choral.fit(Reader, loader, TWO, target="label")
    batch = padded([Dicts(ragged=True)[i] for i in range(9)])
    batch.pop("label")
    assert found.outputs(batch).shape == (2, 9, 2)
    with pytest.raises(InputError, match="differ in shape"):
        choral.fit(Reader, loader, TWO, target="label", compute=choral.Compute(executor="vectorized"))


def test_predicting_a_loader_whose_batches_differ_in_length_and_hold_targets():
    loader = DataLoader(Dicts(ragged=True), collate_fn=padded, batch_size=16)
    found = choral.fit(Reader, loader, TWO, target="label")
    outputs = found.outputs(DataLoader(Dicts(ragged=True), collate_fn=padded, batch_size=5))
    alone = padded([Dicts(ragged=True)[39]])
    alone.pop("label")
    assert outputs.shape == (2, 40, 2)
    assert torch.allclose(outputs[:, 39:], found.outputs(alone), atol=1e-5)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        found.predict(Dicts(ragged=True))


def test_dicts_without_a_target_and_other_parts_are_refused():
    with pytest.raises(InputError, match=r"dicts with 'tokens', 'age', 'label'; say which .*target='label'"):
        choral.fit(Reader, Dicts(), ONE)
    with pytest.raises(InputError, match="Did you mean 'label'"):
        choral.fit(Reader, Dicts(), ONE, target="lable")
    with pytest.raises(InputError, match="3 parts; it must be a pair"):
        choral.fit(small, torch.utils.data.TensorDataset(X, X, Y), ONE)
    with pytest.raises(InputError, match="leave it out"):
        choral.fit(small, (X, Y), ONE, target="label")


def test_inputs_of_other_rows_names_or_kinds_are_refused():
    x = {"tokens": torch.zeros(40, 4, dtype=torch.long), "age": X[:, :1]}
    with pytest.raises(InputError, match=r"x\['tokens'\] has 40, x\['age'\] has 39"):
        choral.fit(Reader, (x | {"age": X[:39, :1]}, Y), ONE)
    with pytest.raises(InputError, match=r"cannot read x: .*passed.*\(tokens"):
        choral.fit(Reader, ({"token": x["tokens"], "age": x["age"]}, Y), ONE)
    with pytest.raises(InputError, match=r"x\['tokens'\] holds values of type <U1"):
        choral.fit(Reader, (x | {"tokens": ["a"] * 40}, Y), ONE)
    found = choral.fit(Reader, (x, Y), ONE)
    with pytest.raises(InputError, match="fitted on inputs like"):
        found.predict(X)
    with pytest.raises(InputError, match="fitted on inputs like"):
        found.predict({"tokens": x["tokens"]})
    plain = choral.fit(small, (X, Y), ONE)
    with pytest.raises(InputError, match="fitted on inputs like"):
        plain.predict((X, X))
    with pytest.raises(InputError, match=r"a batch \(3, 7\) float32 .*fitted on rows like \(1, 6\) float32"):
        plain.predict(torch.randn(3, 7))
    with pytest.raises(InputError, match=r"cannot read x: .*index out of range"):
        found.predict(x | {"tokens": x["tokens"] + 7})


def test_transforms_by_key():
    x = {"tokens": torch.zeros(40, 4, dtype=torch.long), "age": X[:, :1] * 5 + 3}
    scale = {"age": (Normalize(mean=(3.0,), std=(5.0,)),)}
    found = choral.fit(Reader, (x, Y), ONE, transforms=scale)
    wanted = choral.fit(Reader, (x | {"age": (x["age"] - 3) / 5}, Y), ONE)
    assert torch.allclose(found.outputs(x), wanted.outputs(x | {"age": (x["age"] - 3) / 5}), atol=1e-6)
    with pytest.raises(InputError, match="give them by key"):
        choral.fit(Reader, (x, Y), ONE, transforms=scale["age"])
    with pytest.raises(InputError, match="Did you mean 'age'"):
        choral.fit(Reader, (x, Y), ONE, transforms={"ages": scale["age"]})
    with pytest.raises(InputError, match="those for 'age', but x is"):
        choral.fit(small, (X, Y), ONE, transforms=scale)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("method", ["deep_ensemble", "packed", "prune_and_tune", "emp", "ssbnn"])
def test_networks_keep_their_type(method, kind, tmp_path):
    recipe = brief(method)
    x = X.double() * 1e100 if kind == torch.float64 else X
    transform = (Normalize(mean=(0.0,), std=(1e100,)),) if kind == torch.float64 else ()
    found = choral.fit(
        lambda: small().to(kind), (x, Y), recipe, compute=choral.Compute(executor="sequential"), transforms=transform
    )
    assert {p.dtype for s in found.states() for p in s.params.values()} == {kind}
    outputs = found.outputs(x)
    assert outputs.dtype == (torch.float64 if kind == torch.float64 else torch.float32)
    assert torch.isfinite(outputs).all()
    found.save(tmp_path / "e.choral")
    assert torch.equal(choral.load(tmp_path / "e.choral", lambda: small().to(kind)).outputs(x), outputs)


def test_numbers_take_the_type_of_the_network_or_are_refused():
    one = choral.fit(small, (X.double(), Y), ONE)
    assert torch.equal(one.outputs(X.double()), choral.fit(small, (X, Y), ONE).outputs(X))
    far = X.double().clone()
    far[3, 2] = 1e39
    with pytest.raises(InputError, match=r"beyond the reach of the network's float32 .*first at \[3\]; .*double"):
        choral.fit(small, (far, Y), ONE)
    with pytest.raises(InputError, match="beyond the reach"):
        one.predict(far)


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LazyConv2d(4, 3, stride=2), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("method", ["deep_ensemble", "packed", "bnn", "prune_and_tune"])
@pytest.mark.parametrize("given", [False, True])
def test_lazy_layers_are_settled_before_anything_else(method, given, tmp_path):
    x = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    build = Lazy() if given else Lazy
    found = choral.fit(build, (x, Y), brief(method), run_dir=tmp_path / "run")
    loaded = choral.load(tmp_path / "run", Lazy)
    assert torch.equal(loaded.outputs(x), found.outputs(x))
    if given:
        assert any(isinstance(m, nn.LazyLinear) for m in build.modules())  # the user's network was not touched
    with pytest.raises(InputError, match=r"lazy layers.*give data"):
        choral.show(TWO, Lazy)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.count = small(), 0

    def get_extra_state(self):
        return self.count

    def set_extra_state(self, state):
        self.count = state

    def forward(self, x):
        return self.body(x)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = small()

    def forward(self, x):
        x += 1
        return self.body(x)


def test_extra_state_and_writing_into_a_shared_input_are_refused_by_name():
    with pytest.raises(InputError, match=r"module '' \(Counting\).*\(get_extra_state\)"):
        choral.fit(Counting, (X, Y), ONE)
    for method in ("packed", "batch_ensemble", "treenet", "masksembles"):
        with pytest.raises(InputError, match=r"which \d members share"):
            choral.fit(Writing, (X, Y), recipes.make(method, budget=2, training=CALM))
    before = X.clone()
    choral.fit(Writing, (X, Y), TWO, compute=choral.Compute(executor="sequential")).predict(X)
    assert torch.equal(before, X)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.inner = nn.Embedding(7, 5), nn.Linear(5, 5)
        self.last = nn.Linear(5, 7, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.inner(self.words(x).mean(1))))


TOKENS = torch.randint(7, (40, 4), generator=G)


@pytest.mark.parametrize("method", recipes.METHODS)
def test_tied_weights_stay_tied_or_are_refused_by_name(method):
    recipe = brief(method)
    try:
        found = choral.fit(Tied, (TOKENS, TOKENS[:, 0]), recipe)
    except ConversionError as error:
        refused = str(error)
    else:
        member = found.member(0)
        assert torch.equal(member.last.weight, member.words.weight)
        return
    assert "tied" in refused or "'words' (Embedding)" in refused


class Awkward(nn.Module):
    """Something vmap cannot run: it looks at values."""

    def __init__(self):
        super().__init__()
        self.body = small()

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        return out * 2 if out.sum().item() > 1e9 else out


def test_what_cannot_be_stacked_is_refused_before_training_and_trained_one_by_one_otherwise():
    heard = []
    with pytest.raises(InputError, match=r"executor='vectorized' cannot .*Awkward.*use executor='sequential'"):
        choral.fit(Awkward, (X, Y), recipes.prune_and_tune(budget=6, members=2, training=CALM), compute=choral.Compute(executor="vectorized"), callbacks=heard.append,)  # fmt: skip
    assert not [event for event in heard if event["kind"] == "epoch"]
    assert choral.fit(Awkward, (X, Y), TWO).members == 2


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU())
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


def test_a_treenet_with_dropout_before_a_norm_in_its_trunk():
    found = choral.fit(Trunk, (X, Y), recipes.treenet(budget=2, members=3, training=CALM))
    assert torch.isfinite(found.outputs(X)).all()


class Odd(nn.Module):
    """A parameter outside layers, an integer buffer that counts, a buffer that is not saved by torch."""

    seen: Tensor
    shift: Tensor

    def __init__(self):
        super().__init__()
        self.body, self.scale = small(), nn.Parameter(torch.ones(6) * 1.5)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("shift", torch.full((6,), 0.25), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.add_(1)
        return self.body(x * self.scale + self.shift)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_parameters_outside_layers_and_integer_buffers_survive(executor, tmp_path):
    found = choral.fit(Odd, (X, Y), TWO, compute=choral.Compute(executor=executor))
    found.save(tmp_path / "e.choral")
    loaded = choral.load(tmp_path / "e.choral", Odd)
    assert torch.equal(loaded.outputs(X), found.outputs(X))
    for i in range(2):
        assert loaded.member(i).seen == 3  # batches of one epoch
        assert not torch.equal(loaded.member(i).scale, torch.ones(6) * 1.5)
        assert torch.equal(loaded.member(i).shift, torch.full((6,), 0.25))


def test_judging_several_inputs():
    x = {"tokens": torch.zeros(40, 4, dtype=torch.long), "age": X[:, :1]}
    found = evaluate(choral.fit(Reader, (x, Y), TWO), x, Y, ood={n: t[:5] for n, t in x.items()})
    assert found["rows"] == 40
    assert found["ood"]["rows"] == 5
    with pytest.raises(ChoralError, match="corruptions are for images"):
        evaluate(choral.fit(Reader, (x, Y), ONE), x, Y, corruptions="all")


class Remembering(nn.Sequential):
    """Keeps activations as attributes, as code that looks at features does."""

    def forward(self, x):
        self.features = [torch.relu(self[0](x))]
        self.last = self.features[0] * 2
        return self[1](self.last)


def remembering():
    return Remembering(nn.Linear(X.shape[1], 8), nn.Linear(8, 3))


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_network_that_keeps_its_activations_is_trained_with_validation(executor):
    recipe = choral.recipes.deep_ensemble(budget=8, members=2)
    ensemble = choral.fit(remembering, (X, Y), recipe, validation=0.3, compute=choral.Compute(executor=executor))
    expected = torch.stack([member(X).softmax(-1) for member in ensemble]).mean(0)
    torch.testing.assert_close(ensemble.predict(X).probs, expected.detach())


@pytest.mark.filterwarnings("ignore:the network handed over")
def test_a_given_network_may_keep_activations_of_an_earlier_call():
    network = remembering()
    network(X).sum().backward()
    ensemble = choral.fit(network, (X, Y), choral.recipes.deep_ensemble(budget=4, members=2))
    assert ensemble.predict(X).probs.shape == (len(X), 3)
    assert network.last.grad_fn is not None
