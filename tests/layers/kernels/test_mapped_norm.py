import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from choral.layers.kernels.mapped_norm import batch_norm

M, C = 3, 4


def tensors(shape, *, affine=True):
    generator = torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.rand(size, generator=generator, dtype=torch.float64) + 0.5

    weights = (draw(M, C), draw(M, C)) if affine else (None, None)
    return draw(M, 6, C, *shape) * 3, draw(M, C), draw(M, C), *weights


def run(x, mean, var, weight, bias):
    return batch_norm(x, mean, var, weight, bias, momentum=0.2, eps=1e-3)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(), (5,), (3, 2)])
def test_mapped_members_are_normalised_as_alone(shape, affine):
    x, mean, var, weight, bias = tensors(shape, affine=affine)
    means, variances = mean.clone(), var.clone()
    axes = (0, 0, 0, *((0, 0) if affine else (None, None)))
    y = vmap(run, in_dims=axes)(x, means, variances, weight, bias)
    for i in range(M):
        own = (None, None) if weight is None else (weight[i], bias[i])
        wanted = F.batch_norm(x[i], mean[i], var[i], *own, True, 0.2, 1e-3)  # updates the statistics in place
        torch.testing.assert_close(y[i], wanted)
    torch.testing.assert_close(means, mean)
    torch.testing.assert_close(variances, var)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, 0), (2, 0, None)])
def test_members_may_share_inputs_or_scales(axes):
    x, _, _, weight, bias = tensors((2,))
    given = [x if axes[0] == 0 else x[0] if axes[0] is None else x.movedim(0, 2)]
    given += [t if axis == 0 else t[0] for t, axis in zip((weight, bias), axes[1:])]

    def normalise(x, weight, bias):
        return batch_norm(x, None, None, weight, bias, momentum=0.0, eps=1e-3)

    found = vmap(normalise, in_dims=axes)(*given)
    for i in range(M):
        own = [t if axis is None else t.select(axis, i) for t, axis in zip(given, axes)]
        torch.testing.assert_close(found[i], F.batch_norm(own[0], None, None, *own[1:], True, 0.0, 1e-3))


def test_gradients_are_those_of_each_member_alone():
    x, _, _, weight, bias = tensors((3, 2))
    factor = torch.linspace(-1, 2, x[0].numel(), dtype=x.dtype).view_as(x[0])

    def loss(x, weight, bias):
        return (batch_norm(x, None, None, weight, bias, momentum=0.1, eps=1e-3).sin() * factor).sum()

    found = vmap(grad(loss, argnums=(0, 1, 2)))(x, weight, bias)
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    outside = torch.autograd.grad(vmap(loss)(*leaves).sum(), leaves)
    for i in range(M):
        own = [t[i].clone().requires_grad_() for t in (x, weight, bias)]
        y = F.batch_norm(own[0], None, None, own[1], own[2], True, 0.1, 1e-3)
        wanted = torch.autograd.grad((y.sin() * factor).sum(), own)
        torch.testing.assert_close([g[i] for g in found], list(wanted))
        torch.testing.assert_close([g[i] for g in outside], list(wanted))


def test_gradients_agree_with_finite_differences_twice():
    x, _, _, weight, bias = tensors((2,))
    leaves = [t[0].requires_grad_() for t in (x, weight, bias)]

    def normalise(x, weight, bias):
        return batch_norm(x, None, None, weight, bias, momentum=0.1, eps=1e-3)

    assert torch.autograd.gradcheck(normalise, leaves)
    assert torch.autograd.gradgradcheck(normalise, leaves)
