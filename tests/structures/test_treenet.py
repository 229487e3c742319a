import pytest
import torch
from tests.networks import Text, generator, make
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.layers.keyed import keyed
from choral.structures import TreeNet


def test_the_trunk_is_shared_and_keeps_its_weights():
    network, _ = make("resnet")
    joint = TreeNet(members=3, start="layer1.1.conv2").convert(network, generator())
    state = joint.state_dict()
    for name, value in network.state_dict().items():
        stacked = state[f"network.{name}"]
        if name.startswith(("stem", "layer1.0", "layer1.1.conv1", "layer1.1.bn1")):
            assert torch.equal(stacked, value)
        else:
            assert torch.equal(stacked[0], value)
            assert stacked.shape == (3, *value.shape)


def test_the_trunk_runs_once():
    calls = []

    class Counting(nn.Linear):
        def forward(self, x):
            calls.append(tuple(x.shape))
            return super().forward(x)

    network = nn.Sequential(Counting(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
    joint = TreeNet(members=3, branches=("3", "4")).convert(network, generator())
    x = torch.randn(6, 4)
    joint(x)
    assert calls == [(6, 4)]
    norm = joint.network[1]  # type: ignore[index]  # a tensor or layer, as built above
    assert int(norm.num_batches_tracked) == 1
    torch.testing.assert_close(norm.running_mean, 0.1 * network[0](x).mean(0))


def test_the_output_layer_is_the_branch_by_default():
    network, _ = make("mlp")
    joint = TreeNet(members=2).convert(network, generator())
    assert joint.stacked == {"output.weight", "output.bias"}


def test_what_cannot_branch_is_refused():
    with pytest.raises(ConversionError, match=r"no rule for LSTM \('lstm'\)"):
        TreeNet(start="lstm").convert(Text(), generator())
    with pytest.raises(InputError, match=r"start: nothing matches 'layr1'.*Did you mean 'layer1'"):
        TreeNet(start="layr1").convert(make("resnet")[0], generator())
    with pytest.raises(InputError, match="give one of the two"):
        TreeNet(start="a", branches=("b",))
    with pytest.raises(InputError, match="kernel is 'loop'"):
        TreeNet(kernel="loop")


def test_recurrent_trunks_work():
    joint = TreeNet(members=2).convert(Text(), generator())
    tokens = torch.randint(0, 11, (3, 5))
    torch.testing.assert_close(joint(tokens)[1], joint.member(1)(tokens))


def test_dropout_in_the_trunk_draws_once_for_all_members():
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8))
    network = TreeNet(members=3).convert(nn.Sequential(trunk, nn.Linear(8, 2)), torch.Generator().manual_seed(0))
    network.network[1].weight.data.copy_(network.network[1].weight.data[:1].expand(3, -1, -1).clone())
    network.network[1].bias.data.zero_()
    x = torch.randn(6, 4)
    with keyed(1, 2):
        outputs = network.train()(x)
    assert torch.equal(outputs[0], outputs[1])  # equal branches behind one trunk
    assert network.network[0][2].num_batches_tracked == 1
    with keyed(1, 3):
        assert not torch.equal(network(x), outputs)
    assert isinstance(TreeNet(members=3).member(network, 0)[0][1], nn.Dropout)
