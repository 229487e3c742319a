import pytest
import torch
import torch.nn.functional as F
from torch import nn

from choral.base.errors import InputError
from choral.models import wide_resnet


def shaken(network):
    """The network in evaluation mode and double precision, with nothing left at zero or one."""
    network = network.double().eval()
    with torch.no_grad():
        for name, value in (*network.named_parameters(), *network.named_buffers()):
            if name.endswith(("bias", "running_mean")):
                value.normal_(std=0.1)
            elif name.endswith("running_var"):
                value.uniform_(0.5, 2)
    return network


def norm(state, at, x):
    stats = (state[f"{at}.running_mean"], state[f"{at}.running_var"])
    return F.batch_norm(x, *stats, state[f"{at}.weight"], state[f"{at}.bias"])


def output(state, x):
    x = F.relu(norm(state, "bn_final", x)).mean((2, 3))
    return F.linear(x, state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize(("classes", "parameters"), [(10, 36_479_194), (100, 36_536_884)])
def test_wide_resnet_has_the_published_size(classes, parameters):
    with torch.device("meta"):
        network = wide_resnet(28, 10, classes=classes)
    assert sum(p.numel() for p in network.parameters()) == parameters


@pytest.mark.parametrize(("width", "side"), [(1, 8), (2, 7)])
def test_wide_resnet_equals_a_plain_reading_of_its_weights(width, side):
    torch.manual_seed(0)
    network = shaken(wide_resnet(16, width, dropout=0.5))
    state = dict(network.state_dict())
    x = inputs = torch.randn(2, 3, side, side, dtype=torch.double)
    x = F.conv2d(x, state["conv1.weight"], padding=1)
    for s in (1, 2, 3):
        for b in range(2):
            at, stride = f"layer{s}.{b}", 2 if s > 1 and b == 0 else 1
            pre = F.relu(norm(state, f"{at}.bn1", x))
            y = F.conv2d(pre, state[f"{at}.conv1.weight"], stride=stride, padding=1)
            y = F.conv2d(F.relu(norm(state, f"{at}.bn2", y)), state[f"{at}.conv2.weight"], padding=1)
            key = f"{at}.shortcut.weight"
            assert (key in state) == (b == 0 and (s > 1 or width > 1))
            x = y + (F.conv2d(pre, state[key], stride=stride) if key in state else x)
    torch.testing.assert_close(network(inputs), output(state, x))


def test_wide_resnet_drops_out_once_in_each_block():
    rates = [m.p for m in wide_resnet(28, 1, dropout=0.3).modules() if isinstance(m, nn.Dropout)]
    assert rates == [0.3] * 12
    assert not [m for m in wide_resnet(10, 1).modules() if isinstance(m, nn.Dropout)]


@pytest.mark.parametrize("depth", [27, 20, 4])
def test_wide_resnet_refuses_impossible_depths(depth):
    with pytest.raises(InputError, match=rf"depth={depth} is not accepted; it must be 6n\+4"):
        wide_resnet(depth, 2)
