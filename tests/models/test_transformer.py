from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, vmap

from choral.base.errors import InputError
from choral.models import transformer, vit
from choral.models.transformer import EncoderBlock


def test_a_block_equals_torchs_own_layer():
    torch.manual_seed(0)
    block = EncoderBlock(8, 2, 16, 0.0).double().train()
    twin = nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.gelu, batch_first=True, norm_first=True).double().train()
    twin.self_attn.load_state_dict(block.attention.state_dict())
    for name in ("norm1", "norm2", "linear1", "linear2"):
        getattr(twin, name).load_state_dict(getattr(block, name).state_dict())
    x = torch.randn(3, 5, 8, dtype=torch.double)
    torch.testing.assert_close(block(x), twin(x))
    absent = torch.tensor([[False] * 5, [False, False, True, False, True], [False] + [True] * 4])
    torch.testing.assert_close(block(x, absent), twin(x, src_key_padding_mask=absent))


@pytest.mark.parametrize("training", [False, True])
def test_a_block_has_a_gradient_in_both_modes(training):
    torch.manual_seed(0)
    block = EncoderBlock(8, 2, 16, 0.0).double().train(training)
    x = torch.randn(1, 3, 8, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(block, (x,))


@pytest.mark.parametrize("grad", [False, True])
def test_stacked_blocks_meet_no_kernel_without_a_rule(grad):
    torch.manual_seed(0)
    block = EncoderBlock(8, 2, 16, 0.0).double().eval()  # torch's fused kernels are those of evaluation
    params = {k: torch.stack([p, 2 * p]).detach().requires_grad_(grad) for k, p in block.named_parameters()}
    x = torch.randn(3, 5, 8, dtype=torch.double)
    joint = vmap(lambda p: functional_call(block, p, (x,)))(params)
    for i in range(2):
        alone = functional_call(block, {k: p[i] for k, p in params.items()}, (x,))
        torch.testing.assert_close(joint[i], alone)
    if grad:
        joint.sum().backward()
        assert all(p.grad is not None for p in params.values())


@pytest.mark.parametrize(("side", "patch", "tokens"), [(8, 2, 16), (8, 4, 4), (32, 4, 64), (32, 8, 16)])
def test_vit_reads_patches_and_their_places(side, patch, tokens):
    torch.manual_seed(0)
    network: Any = vit(side, patch=patch, channels=2, width=16, depth=2).double().eval()
    assert network.positions.weight.shape == (tokens, 16)
    x = torch.randn(2, 2, side, side, dtype=torch.double)
    # tokens written out one by one: the patch in row r and column c has number r * (side / patch) + c
    weight = network.patches.weight.reshape(16, -1)
    rows: list[torch.Tensor] = []
    for r in range(side // patch):
        for c in range(side // patch):
            piece = x[:, :, r * patch : (r + 1) * patch, c * patch : (c + 1) * patch].reshape(2, -1)
            rows.append(piece @ weight.T + network.patches.bias + network.positions.weight[len(rows)])
    h = network.blocks(torch.stack(rows, 1))
    torch.testing.assert_close(network(x), network.classifier(network.norm(h).mean(1)))
    rolled = network(x.roll(patch, -1))
    assert (rolled - network(x)).abs().max() > 1e-6  # only the positions can tell
    nn.init.zeros_(network.positions.weight)
    torch.testing.assert_close(network(x.roll(patch, -1)), network(x))


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4), more=st.integers(0, 8))
def test_padding_changes_nothing(lengths, more):
    torch.manual_seed(0)
    network = transformer(40, length=20, width=16).double().eval()
    texts = [torch.randint(1, 40, (n,)) for n in lengths]
    tokens = torch.zeros(len(texts), 12 + more, dtype=torch.long)
    for row, text in zip(tokens, texts):
        row[: len(text)] = text
    alone = torch.cat([network(text.unsqueeze(0)) for text in texts])
    torch.testing.assert_close(network(tokens), alone)


def test_a_text_of_padding_has_finite_logits_and_gradients():
    torch.manual_seed(0)
    network = transformer(10, width=8, heads=2)
    out = network(torch.zeros(2, 5, dtype=torch.long))
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)


def test_the_order_of_tokens_matters():
    torch.manual_seed(0)
    network = transformer(10, width=8, heads=2).double().eval()
    assert (network(torch.tensor([[3, 5]])) - network(torch.tensor([[5, 3]]))).abs().max() > 1e-6


def test_patches_must_cover_the_image():
    with pytest.raises(InputError, match="patch=4 does not divide side=30"):
        vit(side=30)
