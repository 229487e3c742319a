from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from choral.base.errors import ConversionError
from choral.layers.frn import FilterResponseNorm
from choral.layers.packed.layers import GroupedLinear, packed

M, B = 3, 4


def randomized(layer):
    with torch.no_grad():
        for t in (*layer.parameters(), *layer.buffers()):
            if t.is_floating_point():
                t.copy_(torch.rand_like(t) + 0.5)
    return layer


LAYERS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "linear_tokens": (lambda: nn.Linear(5, 4, bias=False), (7, 5)),
    "grouped_linear": (lambda: GroupedLinear(6, 4, groups=2), (6,)),
    "grouped_linear_tokens": (lambda: GroupedLinear(6, 4, groups=2, bias=False), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular"), (4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), (4, 7, 6)),
    "conv2d_pointwise": (lambda: nn.Conv2d(4, 6, 1), (4, 5, 6)),
    "conv2d_strided_pointwise": (lambda: nn.Conv2d(4, 6, 1, stride=2, bias=False), (4, 5, 6)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, dilation=2), (2, 5, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1), (4, 3, 3)),
    "batch_norm1d": (lambda: nn.BatchNorm1d(4), (4,)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(4, affine=False), (4, 3, 3)),
    "batch_norm_cumulative": (lambda: nn.BatchNorm2d(4, momentum=None), (4, 3, 3)),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (4, 3, 3)),
    "layer_norm": (lambda: nn.LayerNorm(4), (6, 4)),
    "layer_norm_image": (lambda: nn.LayerNorm((4, 3, 3)), (4, 3, 3)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    "rms_norm": (lambda: nn.RMSNorm(4, eps=1e-5), (6, 4)),
    "prelu": (lambda: nn.PReLU(4), (4, 3)),
    "frn": (lambda: FilterResponseNorm(4), (4, 3, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_packed_layer_is_its_layers_side_by_side(name):
    build, shape = LAYERS[name]
    torch.manual_seed(0)
    layers = [randomized(build().double()) for _ in range(M)]
    joint = packed(layers)
    x = torch.randn(M, B, *shape, dtype=torch.float64)
    for training in (True, False):
        for layer in (*layers, joint):
            layer.train(training)
        alone = torch.stack([layer(part) for layer, part in zip(layers, x)])
        torch.testing.assert_close(joint(x.flatten(0, 1)), alone.flatten(0, 1), atol=1e-10, rtol=1e-10)
    for key, value in joint.state_dict().items():
        torch.testing.assert_close(value, torch.stack([layer.state_dict()[key] for layer in layers]))


def test_embeddings_are_read_by_member():
    layers = [nn.Embedding(5, 3, padding_idx=0) for _ in range(M)]
    tokens = torch.randint(0, 5, (M, B, 6))
    alone = torch.stack([layer(part) for layer, part in zip(layers, tokens)])
    assert torch.equal(packed(layers)(tokens.flatten(0, 1)), alone.flatten(0, 1))


def test_linear_equals_a_block_diagonal_matrix():
    layers = [nn.Linear(5, 4).double() for _ in range(M)]
    x = torch.randn(M, B, 5, dtype=torch.float64)
    matrix = torch.zeros(M * 4, M * 5, dtype=torch.float64)
    for m, layer in enumerate(layers):
        for o in range(4):
            for i in range(5):
                matrix[m * 4 + o, m * 5 + i] = layer.weight[o, i].item()
    wide = x.permute(1, 0, 2).reshape(B, M * 5) @ matrix.T + torch.cat([layer.bias for layer in layers])
    joint = packed(layers)(x.flatten(0, 1)).view(M, B, 4)
    torch.testing.assert_close(joint, wide.view(B, M, 4).transpose(0, 1))


def test_convolution_equals_sums_written_out():
    layers = [nn.Conv2d(2, 3, 2).double() for _ in range(M)]
    x = torch.randn(M, B, 2, 3, 3, dtype=torch.float64)
    joint = packed(layers)(x.flatten(0, 1)).view(M, B, 3, 2, 2)
    for m, layer in enumerate(layers):
        for o in range(3):
            for i in range(2):
                for j in range(2):
                    window = x[m, :, :, i : i + 2, j : j + 2]
                    wanted = (window * layer.weight[o]).sum((1, 2, 3)) + layer.bias[o]
                    torch.testing.assert_close(joint[m, :, o, i, j], wanted)


def test_convolution_equals_one_grouped_convolution():
    layers = [nn.Conv2d(4, 6, 3, padding=1).double() for _ in range(M)]
    x = torch.randn(M, B, 4, 5, 5, dtype=torch.float64)
    weight, bias = (torch.cat([getattr(layer, n) for layer in layers]) for n in ("weight", "bias"))
    wide = F.conv2d(x.transpose(0, 1).flatten(1, 2), weight, bias, padding=1, groups=M)
    joint = packed(layers)(x.flatten(0, 1)).view(M, B, 6, 5, 5)
    torch.testing.assert_close(joint, wide.view(B, M, 6, 5, 5).transpose(0, 1))


def test_other_layers_are_refused_by_name():
    class Louder(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(ConversionError, match="PackedLayer was given Louder"):
        packed([Louder(2, 2), Louder(2, 2)])


def test_rows_that_cannot_be_split_are_refused():
    layer: Any = packed([nn.Linear(2, 2) for _ in range(3)])
    with pytest.raises(ConversionError, match="3 members was given 4 rows"):
        layer(torch.ones(4, 2))


def test_grouped_linear_is_block_diagonal():
    layer = GroupedLinear(6, 4, groups=2).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    dense = torch.block_diag(layer.weight[:2], layer.weight[2:])
    torch.testing.assert_close(layer(x), x @ dense.T + layer.bias)
