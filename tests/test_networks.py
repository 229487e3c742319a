"""Networks as people write them: layouts, subclasses, hand-written layers, time first, weights that are brought along."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.test_any_network import brief
from torch import Tensor, nn

import choral
from choral import recipes
from choral.base.errors import ConversionError
from choral.layers.bayesian.dropout import DroppedOutput
from choral.layers.bayesian.sampling import SampledLayer
from choral.layers.functional import WEIGHTED, own_kind
from choral.layers.joint.layers import MaskedLayer, RankOneLayer
from choral.recipes.training import Training

CALM = Training(lr=0.02, batch_size=8)
STILL = Training(lr=1e-9, batch_size=16)
G = torch.Generator().manual_seed(0)
ROWS = torch.randn(24, 6, generator=G)
IMAGES = torch.randn(16, 3, 12, 12, generator=G)
TOKENS = torch.randint(12, (16, 8), generator=G)
Y = torch.arange(24) % 2


def alone(ensemble: Any, x: Tensor) -> None:
    """Members taken out compute what they do inside, and rows asked alone what they are in a batch."""
    outputs = ensemble.outputs(x)
    assert torch.allclose(ensemble.outputs(x[5:7]), outputs[:, 5:7], atol=1e-5)
    for i in range(ensemble.members if ensemble.recipe.structure.draws == 1 else 0):
        with torch.no_grad():
            assert torch.allclose(ensemble.member(i)(x), outputs[i], atol=1e-5)


class Viewing(nn.Module):
    """As torch's tutorial network: `view` merges the axes of images."""

    def __init__(self, channels: int = 3):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(channels, 4, 5), nn.Linear(4 * 8 * 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.conv(x)).view(x.shape[0], -1))


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize(
    "method", ["deep_ensemble", "packed", "batch_ensemble", "treenet", "masksembles", "mc_dropout", "bnn"]
)
def test_a_view_of_images_is_trained(method, channels, tmp_path):
    x, y = IMAGES[:, :channels], Y[:16]
    ensemble = choral.fit(lambda: Viewing(channels), (x, y), brief(method))
    alone(ensemble, x)
    ensemble.save(tmp_path / "e.choral")
    assert torch.equal(choral.load(tmp_path / "e.choral", lambda: Viewing(channels)).outputs(x), ensemble.outputs(x))


def test_a_view_of_images_is_trained_together_and_from_a_dataset():
    ensemble = choral.fit(
        Viewing, (IMAGES, Y[:16]), brief("deep_ensemble"), compute=choral.Compute(executor="vectorized")
    )
    alone(ensemble, IMAGES)
    items = [(x, int(y)) for x, y in zip(IMAGES, Y)]
    assert torch.isfinite(choral.fit(Viewing, items, brief("single")).outputs(IMAGES)).all()


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def trained() -> nn.Sequential:
    network = small()
    with torch.no_grad():
        for i, p in enumerate(network.parameters()):
            p.copy_(torch.arange(1, p.numel() + 1).mul(i + 1).sin().view(p.shape) * 2)
    return network


POSTERIORS = ["bnn", "ssbnn", "bnn_sequential", "sebays_freeze", "sebays_no_freeze"]


@pytest.mark.parametrize("given", ["network", "function"])
@pytest.mark.parametrize("method", POSTERIORS)
def test_posteriors_start_at_the_weights_that_are_handed_over(method, given):
    options = {"members": 1} if "members" in recipes.METHODS[method].options else {}
    recipe = recipes.make(method, budget=3, draws=2, training=STILL, **options)
    ensemble = choral.fit(trained() if given == "network" else trained, (ROWS, Y), recipe)
    wanted = dict(trained().named_parameters())
    found = next(iter(ensemble.states())).params
    first = found["0.weight_mean"]
    assert torch.allclose(first, wanted["0.weight"][: len(first)], atol=0.1), (
        "closed nodes aside, means are the weights"
    )


def wide() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 2))


@pytest.mark.parametrize("given", [small, wide, wide()], ids=["small", "wide", "network"])
def test_posteriors_of_new_networks_start_as_in_the_paper(given):
    recipe = recipes.bnn(budget=1, draws=2, training=STILL)
    found = next(iter(choral.fit(given, (ROWS, Y), recipe).states())).params
    assert bool((found["0.bias_mean"].abs() < 1e-6).all()), "Kaiming's rule has zero biases, torch's has not"


@pytest.mark.parametrize("method", ["packed", "mimo"])
def test_layers_of_other_sizes_lose_trained_weights_with_a_warning(method):
    with pytest.warns(UserWarning, match="other sizes"):
        choral.fit(trained, (ROWS, Y), brief(method))


class Casting(nn.Linear):
    """As timm's Linear: the parent's forward in another type."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class Called(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Louder(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Adapted(nn.Linear):
    """Equal to its parent until it is trained."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.more = nn.Parameter(torch.zeros_like(self.weight))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(x, self.more)


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + 0.1 * torch.randn_like(x) if self.training else x)


class Same(nn.Conv2d):
    """Pads odd images only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (0, x.shape[-1] % 2, 0, x.shape[-2] % 2)))


def test_a_subclass_counts_as_its_parent_if_it_computes_the_same():
    assert own_kind(Casting(3, 2), WEIGHTED) is nn.Linear
    assert own_kind(Called(3, 4, 3, stride=2, padding=1), WEIGHTED) is nn.Conv2d
    for other in (Louder(3, 2), Adapted(3, 2), Noisy(3, 2), Same(3, 4, 2, stride=2)):
        assert own_kind(other, WEIGHTED) is None, other


class Turned(nn.Module):
    """transformers' Conv1D: a linear map whose weight is (input, output)."""

    def __init__(self, outputs: int, inputs: int):
        super().__init__()
        self.nf = outputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.3)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


CONVERTED = {
    "batch_ensemble": RankOneLayer, "masksembles": MaskedLayer, "bnn": SampledLayer, "mc_dropout": DroppedOutput
}  # fmt: skip


@pytest.mark.parametrize("layer", [lambda: Casting(6, 8), lambda: Turned(8, 6)], ids=["subclass", "turned"])
@pytest.mark.parametrize(
    "method", ["batch_ensemble", "masksembles", "mc_dropout", "bnn", "deep_ensemble", "prune_and_tune", "packed"]
)
def test_layers_that_compute_linear_maps_are_converted_as_such(method, layer):
    def build() -> nn.Module:
        return nn.Sequential(layer(), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))

    ensemble = choral.fit(build, (ROWS, Y), brief(method))
    alone(ensemble, ROWS)
    if method in CONVERTED:
        joint = ensemble._network()
        first = joint.network[0] if hasattr(joint, "network") else joint[0]
        assert isinstance(first, CONVERTED[method])
    if method in ("batch_ensemble", "deep_ensemble"):
        member = ensemble.member(1)
        assert type(member[0]) is type(layer()), "a member is made of the layers that were given"
        assert member[0].weight.shape == layer().weight.shape


def test_hand_written_linear_maps_are_pruned():
    found = choral.fit(
        lambda: nn.Sequential(Turned(8, 6), nn.Tanh(), nn.Linear(8, 2)), (ROWS, Y), brief("prune_and_tune")
    )
    share = (found.member(0)[0].weight == 0).float().mean()
    assert 0.3 < float(share) < 0.7


class Positions(nn.Module):
    """An integer buffer as long as a hidden width, and forward code that reads settings of layers."""

    ids: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ids", torch.arange(8).unsqueeze(0))
        self.places, self.words = nn.Embedding(8, 8), nn.Embedding(12, 8)
        self.dropout, self.body, self.last = nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x) + self.places(self.ids[:, : x.shape[1]])
        assert self.dropout.p == 0.1
        assert self.body(hidden).shape[-1] == self.body.out_features
        return self.last(self.dropout(torch.tanh(self.body(hidden))).mean(1))


@pytest.mark.parametrize("method", ["packed", "treenet", "batch_ensemble", "masksembles", "bnn", "mc_dropout"])
def test_integer_buffers_and_settings_of_layers_can_be_read(method):
    ensemble = choral.fit(Positions, (TOKENS, Y[:16]), brief(method))
    alone(ensemble, TOKENS)


class TimeFirst(nn.Module):
    """Computes (time, batch, feature), torch's default, and declares what it reads with last."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2)
        self.dropout, self.body = nn.Dropout(0.2), nn.Linear(8, 8)
        self.words, self.last = nn.Embedding(12, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.dropout(self.body(self.layer(self.words(x.t())))).mean(0))


@pytest.mark.parametrize("method", ["masksembles", "batch_ensemble", "packed", "treenet", "mc_dropout", "drop_connect"])
def test_networks_with_time_first_have_members_and_rows_of_their_own(method):
    alone(choral.fit(TimeFirst, (TOKENS, Y[:16]), brief(method)), TOKENS)


@pytest.mark.parametrize("method", ["masksembles", "batch_ensemble"])
def test_rows_that_divide_the_length_of_sequences_get_what_they_get_in_a_batch(method):
    tokens = torch.randint(
        12, (16, 12), generator=torch.Generator().manual_seed(3)
    )  # 12 steps; 2 members of 1, 2, 3 rows
    training = Training(lr=0.02, batch_size=16)
    found = choral.fit(TimeFirst, (tokens, Y[:16]), recipes.make(method, budget=1, members=2, training=training))
    whole = found.predict(tokens).probs
    for rows in (1, 2, 3, 6):
        assert torch.allclose(found.predict(tokens[:rows]).probs, whole[:rows], atol=1e-5), rows


def test_rank_one_posteriors_refuse_time_first_where_members_would_be_mixed():
    with pytest.raises(ConversionError):
        choral.fit(TimeFirst, (TOKENS, Y[:16]), recipes.rank1_bnn(budget=1, members=2, training=CALM))


class Patches(nn.Module):
    """A linear map of patches in which channels are the last to count."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3 * 16, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        cut = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
        return self.last(torch.tanh(self.first(cut)).mean(1))


def test_mimo_is_refused_where_a_member_would_be_another_network():
    with pytest.raises(ConversionError, match="another network"):
        choral.fit(Patches, (IMAGES, Y[:16]), brief("mimo"))
    alone(choral.fit(Viewing, (IMAGES, Y[:16]), brief("mimo")), IMAGES)


class Keeping(nn.Module):
    """Keeps the statistics of its BatchNorm on purpose."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
        self.norm.load_state_dict({**self.norm.state_dict(), "running_mean": torch.full((8,), 0.5)})

    def train(self, mode: bool = True) -> "Keeping":
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.body(x))))


@pytest.mark.parametrize("method", ["swa", "swag", "sebays_freeze"])
def test_statistics_kept_on_purpose_are_not_estimated_again(method):
    options: dict[str, Any] = {"recalibrate": True} if "recalibrate" in recipes.METHODS[method].options else {}
    recipe = brief(method) if not options else recipes.make(method, budget=6, draws=2, training=CALM, **options)
    for state in choral.fit(Keeping, (ROWS, Y), recipe).states():
        for name, value in state.buffers.items():
            if name.endswith("running_mean"):
                assert bool((value == 0.5).all())


class Recurrent(nn.Module):
    """Uses the last states of an LSTM, not what it returns first."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.last = (
            nn.Embedding(12, 8),
            nn.LSTM(8, 8, 2, dropout=0.1, batch_first=True),
            nn.Linear(8, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(self.words(x))[1][0][-1])


@pytest.mark.parametrize("method", ["batch_ensemble", "prune_and_tune", "packed", "treenet", "bnn"])
def test_recurrent_layers_are_shared_or_pruned(method):
    ensemble = choral.fit(Recurrent, (TOKENS, Y[:16]), brief(method))
    alone(ensemble, TOKENS)
    if method == "prune_and_tune":
        assert float((ensemble.member(0).lstm.weight_hh_l0 == 0).float().mean()) > 0.2


class Attentive(nn.Module):
    """Packed sequences through a GRU, whose states are weighed by a linear map with one output."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.gru = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True)
        self.weigh, self.last = nn.Linear(8, 1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 2).sum(1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(self.words(x), lengths, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.last((self.weigh(states).softmax(1) * states).sum(1))


@pytest.mark.parametrize("method", ["emp", "bnn", "mc_dropout", "deep_ensemble", "packed", "treenet"])
def test_packed_sequences_are_read(method):
    alone(choral.fit(Attentive, (TOKENS, Y[:16]), brief(method)), TOKENS)


def test_masks_of_one_channel_would_make_equal_members():
    with pytest.raises(ConversionError, match="found no layer to convert in Attentive"):
        choral.fit(Attentive, (TOKENS, Y[:16]), brief("masksembles"))


class OwnTo(nn.Module):
    """A `to` with a signature of its own, as in pykan."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def to(self, device: str) -> "OwnTo":  # type: ignore[override]  # the habit in question
        raise AssertionError("only its owner calls it")

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("method", ["deep_ensemble", "batch_ensemble", "bnn"])
def test_a_network_with_a_to_of_its_own(method):
    alone(choral.fit(OwnTo, (ROWS, Y), brief(method)), ROWS)


class Items:
    """What `datasets.Dataset` is: a length and items by number, dicts with lists of numbers."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": ROWS[index].tolist(), "label": int(Y[index])}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_anything_with_a_length_and_items_is_a_dataset():
    recipe = recipes.single(budget=2, training=CALM)
    found = choral.fit(Named, Items(), recipe, target="label")
    wanted = choral.fit(Named, ({"x": ROWS}, Y), recipe)
    assert torch.equal(found.outputs({"x": ROWS}), wanted.outputs({"x": ROWS}))
    assert torch.equal(found.predict(Items()).probs, wanted.predict({"x": ROWS}).probs)
