import pytest
import torch
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.layers.joint.layers import RankOneLayer

M, B = 3, 4
LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear_tokens": (lambda: nn.Linear(6, 4, bias=False), (9, 6)),
    "conv1d": (lambda: nn.Conv1d(6, 4, 3, padding="same", padding_mode="reflect"), (6, 8)),
    "conv2d_groups": (lambda: nn.Conv2d(6, 4, 3, groups=2), (6, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(6, 12, 3, groups=6), (6, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), (2, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose1d(6, 4, 3, stride=2), (6, 5)),
    "transposed_groups": (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), (6, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_members_have_the_weight_scaled_by_r_and_s(name):
    build, shape = LAYERS[name]
    torch.manual_seed(0)
    plain = build().double()
    layer = RankOneLayer(build().double(), members=M)
    layer.load_state_dict(layer.state_dict() | {"weight": plain.state_dict()["weight"]})
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    x = torch.randn(M, B, *shape, dtype=torch.float64)
    channels = -1 if isinstance(plain, nn.Linear) else 2

    def along(vector, y):
        axes = [1] * y.dim()
        axes[channels] = -1
        return torch.stack([v.view(axes[1:]) for v in vector])

    # scaling inputs and outputs is the definition; the layer may scale weights instead
    plain.bias = None
    y = plain((x * along(layer.s, x)).flatten(0, 1)).unflatten(0, (M, B))
    wanted = y * along(layer.r, y) + (0 if layer.bias is None else along(layer.bias, y))
    torch.testing.assert_close(layer(x.flatten(0, 1)), wanted.flatten(0, 1))
    for i in range(M):
        own = {n: p if n == "weight" else p[i] for n, p in layer.named_parameters()}
        torch.testing.assert_close(torch.func.functional_call(layer, own, (x[i],)), wanted[i])


@pytest.mark.parametrize("rows", [1, 1000])
def test_linear_maps_scale_what_is_smaller_with_the_same_result(rows):
    layer = RankOneLayer(nn.Linear(6, 4).double(), members=1)
    torch.nn.init.normal_(layer.r)
    torch.nn.init.normal_(layer.s)
    own = {n: p if n == "weight" else p[0] for n, p in layer.named_parameters()}
    x = torch.randn(rows, 6, dtype=torch.float64)
    wanted = x @ (layer.weight * layer.r[0, :, None] * layer.s[0]).T + layer.bias[0]  # type: ignore[index]  # a tensor or layer, as built above
    torch.testing.assert_close(torch.func.functional_call(layer, own, (x,)), wanted)


@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_linear_maps_agree_with_finite_differences_twice(bias):
    torch.manual_seed(0)
    layer = RankOneLayer(nn.Linear(3, 2, bias=bias).double(), members=2)
    x = torch.randn(2 * 2, 3, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters())

    def run(x, *tensors):
        return torch.func.functional_call(layer, dict(zip(names, tensors)), (x,)).square()

    assert torch.autograd.gradcheck(run, (x, *values))
    assert torch.autograd.gradgradcheck(run, (x, *values))


def test_gradients_are_the_same_under_torch_func():
    torch.manual_seed(0)
    layer = RankOneLayer(nn.Linear(5, 4).double(), members=3)
    x = torch.randn(3 * 2, 7, 5, dtype=torch.float64)
    params = dict(layer.named_parameters())

    def loss(params):
        return torch.func.functional_call(layer, params, (x,)).square().sum()

    wanted = torch.func.grad(loss)(params)
    found = torch.autograd.grad(loss(params), list(params.values()))
    torch.testing.assert_close(dict(zip(params, found)), wanted)


def test_starts():
    generator = torch.Generator().manual_seed(0)
    normal = RankOneLayer(nn.Linear(2000, 3000), members=2, generator=generator)
    assert normal.s.mean().item() == pytest.approx(1, abs=0.03)
    assert normal.r.std().item() == pytest.approx(0.5, abs=0.03)
    signs = RankOneLayer(nn.Linear(200, 300), members=2, start="signs", generator=generator)
    assert set(signs.r.flatten().tolist()) == {-1.0, 1.0}
    one = RankOneLayer(nn.Linear(2, 3), members=1)
    assert (one.r == 1).all()
    assert (one.s == 1).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(InputError, match="start is 'sign'"):
        RankOneLayer(nn.Linear(2, 2), members=2, start="sign")
    with pytest.raises(ConversionError, match="RankOneLayer was given ReLU"):
        RankOneLayer(nn.ReLU(), members=2)
