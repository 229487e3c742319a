"""Muon against torch's, alone and stacked."""

import torch
from torch import nn

from choral.plan import Muon
from choral.plan.optimizers import Member, Stepper

RATES, DECAYS, MOMENTA = (0.02, 0.005, 0.003), (0.1, 0.0, 0.5), (0.95, 0.8, 0.9)


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3))


def data():
    g = torch.Generator().manual_seed(5)
    return torch.randn(32, 6, generator=g), torch.randn(32, 3, generator=g)


def by_torch(net, rate, decay, momentum, steps):
    """Matrices by torch's Muon, vectors by its AdamW, in the plain loop."""
    x, y = data()
    matrices = [p for p in net.parameters() if p.dim() == 2]
    vectors = [p for p in net.parameters() if p.dim() == 1]
    both = [
        torch.optim.Muon(matrices, lr=2 * rate, weight_decay=decay, momentum=momentum),
        torch.optim.AdamW(vectors, lr=rate, weight_decay=decay),
    ]
    for _ in range(steps):
        for optimizer in both:
            optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        for optimizer in both:
            optimizer.step()
    return dict(net.named_parameters())


def ours(nets, members, steps):
    """A stack of networks, or one."""
    x, y = data()
    stacked = len(nets) > 1
    names = list(dict(nets[0].named_parameters()))
    each = [dict(n.named_parameters()) for n in nets]
    params = {
        n: (torch.stack([e[n].detach() for e in each]) if stacked else each[0][n].detach().clone()).requires_grad_()
        for n in names
    }
    stepper = Stepper(params, members, stacked=stacked, apart=True)
    for _ in range(steps):
        for p in params.values():
            p.grad = None
        parts = [{n: p[i] for n, p in params.items()} for i in range(len(nets))] if stacked else [params]
        losses = [(torch.func.functional_call(nets[0], part, (x,)) - y).square().mean() for part in parts]
        torch.stack(losses).sum().backward()
        stepper.step(1.0)
    return parts


def test_a_stack_takes_twenty_steps_of_torchs_muon_for_each_member():
    members = [Member(Muon(weight_decay=d, momentum=m, matrix_rate=2.0), r) for r, d, m in zip(RATES, DECAYS, MOMENTA)]
    expected = [by_torch(network(i), *s, 20) for i, s in enumerate(zip(RATES, DECAYS, MOMENTA))]
    ours_now = ours([network(i) for i in range(3)], members, 20)
    for found, wanted in zip(ours_now, expected):
        for name, p in wanted.items():
            torch.testing.assert_close(found[name].detach(), p.detach(), atol=1e-6, rtol=1e-6)


def test_one_network_takes_them_too():
    (found,) = ours([network(7)], [Member(Muon(weight_decay=0.1, matrix_rate=2.0), 0.02)], 20)
    for name, p in by_torch(network(7), 0.02, 0.1, 0.95, 20).items():
        torch.testing.assert_close(found[name].detach(), p.detach(), atol=1e-6, rtol=1e-6)
