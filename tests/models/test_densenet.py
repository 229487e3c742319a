import pytest
import torch
import torch.nn.functional as F
from torch import nn

from choral.base.errors import InputError
from choral.models import densenet121


def test_densenet_has_the_published_size_and_torchvisions_names():
    with torch.device("meta"):
        network = densenet121()
    state = network.state_dict()
    assert sum(p.numel() for p in network.parameters()) == 7_978_856
    assert len(state) == 727
    assert state["features.conv0.weight"].shape == (64, 3, 7, 7)
    assert state["features.denseblock3.denselayer24.conv1.weight"].shape == (128, 992, 1, 1)
    assert state["features.transition2.norm.running_mean"].shape == (512,)
    assert state["features.norm5.weight"].shape == (1024,)
    assert state["classifier.weight"].shape == (1000, 1024)


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 64), ("cifar", 16)])
def test_densenet_equals_a_plain_reading_of_its_weights(stem, side):
    torch.manual_seed(0)
    network = densenet121(growth=3, classes=4, stem=stem, dropout=0.2).double().eval()
    with torch.no_grad():
        for name, value in (*network.named_parameters(), *network.named_buffers()):
            if name.endswith(("bias", "running_mean")):
                value.normal_(std=0.1)
            elif name.endswith("running_var"):
                value.uniform_(0.5, 2)
    state = {name.removeprefix("features."): value for name, value in network.state_dict().items()}

    def active(at, x):
        stats = (state[f"{at}.running_mean"], state[f"{at}.running_var"])
        return F.relu(F.batch_norm(x, *stats, state[f"{at}.weight"], state[f"{at}.bias"]))

    x = inputs = torch.randn(2, 3, side, side, dtype=torch.double)
    if stem == "imagenet":
        x = F.max_pool2d(active("norm0", F.conv2d(x, state["conv0.weight"], stride=2, padding=3)), 3, 2, 1)
    else:
        x = active("norm0", F.conv2d(x, state["conv0.weight"], padding=1))
    for block, length in enumerate((6, 12, 24, 16), start=1):
        seen = [x]
        for layer in range(1, length + 1):
            at = f"denseblock{block}.denselayer{layer}"
            y = F.conv2d(active(f"{at}.norm1", torch.cat(seen, 1)), state[f"{at}.conv1.weight"])
            seen.append(F.conv2d(active(f"{at}.norm2", y), state[f"{at}.conv2.weight"], padding=1))
        x = torch.cat(seen, 1)
        if block < 4:
            at = f"transition{block}"
            x = F.avg_pool2d(F.conv2d(active(f"{at}.norm", x), state[f"{at}.conv.weight"]), 2)
    x = active("norm5", x).mean((2, 3))
    torch.testing.assert_close(network(inputs), F.linear(x, state["classifier.weight"], state["classifier.bias"]))


def test_densenet_drops_out_in_every_layer():
    with torch.device("meta"):
        assert [m.p for m in densenet121(dropout=0.2).modules() if isinstance(m, nn.Dropout)] == [0.2] * 58


@pytest.mark.parametrize(
    "arguments", [{"stem": "small"}, {"growth": 0}, {"classes": 0}, {"channels": 0}, {"dropout": -0.1}]
)
def test_densenet_refuses_impossible_arguments(arguments):
    (name,) = arguments
    with pytest.raises(InputError, match=f"densenet121: {name}="):
        densenet121(**arguments)
