import pytest
import torch

from choral.base.errors import InputError
from choral.plan import SGD, Adam, AdamW
from choral.plan.optimizer_step import Stepper, clip_gradients, memory_of, restore_memory, stack_memory, unstack_memory

EVERY = [SGD(), SGD(nesterov=True, weight_decay=0.01), Adam(), AdamW()]


def params(seed=0, branches=None):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 4), "b": (3,)}
    lead = () if branches is None else (branches,)
    return {n: torch.randn(*lead, *s, generator=generator).requires_grad_() for n, s in shapes.items()}


def test_decay_groups_leave_vectors_and_named_parameters_alone():
    for stacked, p in ((False, params()), (True, params(branches=2))):
        groups = SGD(weight_decay=0.1, decay_vectors=False).make(p, stacked=stacked, undecayed=()).param_groups
        assert {g["weight_decay"]: len(g["params"]) for g in groups} == {0.1: 1, 0.0: 1}
        groups = SGD(weight_decay=0.1).make(p, stacked=stacked, undecayed=("w",)).param_groups
        assert {g["weight_decay"]: g["params"][0].dim() - stacked for g in groups} == {0.1: 1, 0.0: 2}


def test_clipping_by_member_equals_torch_s_for_each():
    stacked = params(branches=3)
    for p in stacked.values():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * torch.tensor([0.01, 1, 10]).view(
            3, *[1] * (p.dim() - 1)
        )
    singles = []
    for i in range(3):
        single = {n: torch.nn.Parameter(p[i].detach().clone()) for n, p in stacked.items()}
        for n, p in single.items():
            p.grad = stacked[n].grad[i].clone()
        torch.nn.utils.clip_grad_norm_(list(single.values()), 1.0)
        singles.append(single)
    clip_gradients(stacked, 1.0, stacked=True)
    for i in range(3):
        for n, p in stacked.items():
            assert torch.allclose(p.grad[i], singles[i][n].grad, atol=1e-6)


@pytest.mark.parametrize("optimizer", [SGD(nesterov=True), Adam(), AdamW()])
def test_a_restored_memory_goes_on_as_if_never_stopped(optimizer):
    def steps(p, made, count, seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            for t in p.values():
                t.grad = torch.randn(t.shape, generator=generator)
            made.step()

    whole = params()
    made = optimizer.make(whole)
    steps(whole, made, 3, 1)
    halfway = {n: t.detach().clone().requires_grad_() for n, t in whole.items()}
    memory = memory_of(made, whole)
    steps(whole, made, 3, 2)
    again = optimizer.make(halfway)
    restore_memory(again, halfway, memory)
    steps(halfway, again, 3, 2)
    assert all(torch.equal(whole[n], halfway[n]) for n in whole)
    fresh = {n: t.clone() for n, t in memory.items()}
    assert fresh.keys() == memory.keys()


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.0), SGD(nesterov=True, weight_decay=0.1), Adam(), AdamW()])
def test_steps_past_torch_are_torchs_steps_bit_by_bit(optimizer):
    generator = torch.Generator().manual_seed(0)
    start = {"weight": torch.randn(3, 4, generator=generator), "bias": torch.randn(3, generator=generator)}
    grads = [{n: torch.randn(p.shape, generator=generator) for n, p in start.items()} for _ in range(6)]
    ours, theirs = ({n: p.clone().requires_grad_() for n, p in start.items()} for _ in range(2))
    torchs, wrapped = optimizer.make(theirs), optimizer.make(ours)
    stepper = Stepper(optimizer, wrapped)
    for i, given in enumerate(grads):
        for params in (ours, theirs):
            for n, p in params.items():
                p.grad = None if i == 3 and n == "bias" else given[n].clone()  # one step without some gradient
        for group in torchs.param_groups:
            group["lr"] = 0.1 / (i + 1)
        torchs.step()
        stepper.step(0.1 / (i + 1))
        assert all(torch.equal(ours[n], theirs[n]) for n in start)
    first, second = memory_of(wrapped, ours), memory_of(torchs, theirs)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert stepper._groups is not None


def test_parameters_clipped_apart_take_nothing_from_the_rest():
    """A gate of norm 15 beside weights of norm 2.5: apart both come to 1, together the weights come to 0.16."""
    for stacked in (False, True):
        lead = (2,) if stacked else ()
        held = {n: torch.zeros(*lead, 4).requires_grad_() for n in ("a.weight_mean", "a.gate_logit", "b.gate_logit")}
        for name, norm in (("a.weight_mean", 2.5), ("a.gate_logit", 9.0), ("b.gate_logit", 12.0)):
            held[name].grad = torch.full((*lead, 4), norm / 2)
        if stacked:
            for p in held.values():
                p.grad[1] *= 0.01  # a member within the limit is left alone
        clip_gradients(held, 1.0, apart=("*gate_logit",), stacked=stacked)
        norms = {n: p.grad.view(-1, 4).norm(dim=-1) for n, p in held.items()}
        assert norms["a.weight_mean"][0] == pytest.approx(1.0, abs=1e-5)
        assert norms["a.gate_logit"][0] == pytest.approx(0.6, abs=1e-5)
        assert norms["b.gate_logit"][0] == pytest.approx(0.8, abs=1e-5)
        if stacked:
            assert norms["a.weight_mean"][1] == pytest.approx(0.025)
            assert norms["b.gate_logit"][1] == pytest.approx(0.12)


def images(seed=0):
    """Weights of a convolution of three channels as it likes them, and a scalar."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 3, 3, 3, generator=generator).to(memory_format=torch.channels_last)
    return {"w": weight.requires_grad_(), "scale": torch.randn((), generator=generator).requires_grad_()}


def take(p, stepper, count, seed, *, order=torch.preserve_format):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        for t in p.values():
            t.grad = torch.empty_like(t).copy_(torch.randn(t.shape, generator=generator))
            t.grad = t.grad.contiguous() if order == torch.contiguous_format else t.grad
        stepper.step(0.1)


@pytest.mark.parametrize("through_torch", [False, True])
@pytest.mark.parametrize("optimizer", EVERY)
def test_memory_in_the_order_of_a_file_meets_weights_with_channels_last(optimizer, through_torch):
    whole = images()
    made = optimizer.make(whole)
    take(whole, Stepper(optimizer, made), 3, 1)
    memory = {n: t.contiguous() for n, t in memory_of(made, whole).items()}
    halfway = {n: t.detach().clone().requires_grad_() for n, t in whole.items()}
    take(whole, Stepper(optimizer, made), 3, 2)
    again = optimizer.make(halfway)
    restore_memory(again, halfway, memory)
    stepper = Stepper(optimizer, again)
    if through_torch:
        stepper._direct = False
    take(halfway, stepper, 3, 2)
    assert all(torch.equal(whole[n], halfway[n]) for n in whole)


@pytest.mark.parametrize("through_torch", [False, True])
@pytest.mark.parametrize("optimizer", EVERY)
def test_gradients_in_another_order_than_their_weights_do_the_same(optimizer, through_torch):
    usual, other = images(), images()
    for p, order in ((usual, torch.preserve_format), (other, torch.contiguous_format)):
        stepper = Stepper(optimizer, optimizer.make(p))
        stepper._direct = not through_torch
        take(p, stepper, 4, 1, order=order)
    assert all(torch.equal(usual[n], other[n]) for n in usual)


@pytest.mark.parametrize("optimizer", EVERY)
def test_memory_is_stacked_and_taken_apart_by_network_also_that_of_scalars(optimizer):
    def run(p, seed, count, memory=None):
        made = optimizer.make(p)
        restore_memory(made, p, memory or {})
        take(p, Stepper(optimizer, made), count, seed)
        return memory_of(made, p)

    alone = [images(seed) for seed in (1, 2)]
    memories = [run(p, 3, 2) for p in alone]
    stacked = {n: torch.stack([p[n].detach() for p in alone]).requires_grad_() for n in alone[0]}
    made = optimizer.make(stacked, stacked=True)
    restore_memory(made, stacked, stack_memory(memories))
    stepper = Stepper(optimizer, made)
    for _ in range(2):
        for n, t in stacked.items():
            t.grad = torch.stack([torch.full_like(p[n], 0.5 + i) for i, p in enumerate(alone)])
            for i, p in enumerate(alone):
                p[n].grad = torch.full_like(p[n], 0.5 + i)
        stepper.step(0.1)
    apart = unstack_memory(memory_of(made, stacked), 2)
    for i, p in enumerate(alone):
        made = optimizer.make(p)
        restore_memory(made, p, memories[i])
        stepper = Stepper(optimizer, made)
        for _ in range(2):
            stepper.step(0.1)
        for n in p:
            assert torch.allclose(stacked[n][i], p[n], atol=1e-6)
        expected = memory_of(made, p)
        assert apart[i].keys() == expected.keys()
        assert all(torch.allclose(apart[i][n], expected[n], atol=1e-6) for n in expected)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_a_rate_of_its_own_is_that_of_an_optimizer_of_its_own(kind, stacked):
    """Factors of the rate, also past torch's optimizer: 'b' steps as if its schedule were a quarter of the rate."""
    value = kind(weight_decay=0.1, rates=(("b", 0.25), ("*", 1.0)))
    branches = 2 if stacked else None
    ours, alone = params(branches=branches), params(branches=branches)
    stepper = Stepper(value, value.make(ours, stacked=stacked))
    plain = kind(weight_decay=0.1)
    single = {n: (plain.make({n: p}, stacked=stacked), 0.25 if n == "b" else 1.0) for n, p in alone.items()}
    generator = torch.Generator().manual_seed(2)
    for i in range(5):
        for n in ours:
            ours[n].grad = torch.randn(ours[n].shape, generator=generator)
            alone[n].grad = ours[n].grad.clone()
        rate = 0.1 / (i + 1)
        for made, factor in single.values():
            for group in made.param_groups:
                group["lr"] = rate * factor
            made.step()
        stepper.step(rate)
    assert stepper._groups is not None
    assert all(torch.equal(ours[n], alone[n]) for n in ours)


def test_a_factor_below_zero_is_refused():
    with pytest.raises(InputError, match=r"give a factor of the rate, 0 or more"):
        SGD(rates=(("*_rho", -1.0),))


@pytest.mark.parametrize("stacked", [False, True])
def test_clipping_takes_scalars_any_layout_and_any_type(stacked):
    """Against a loop over plain numbers in double precision."""
    lead, generator = ((3,) if stacked else ()), torch.Generator().manual_seed(0)
    shapes = {"scalar": (), "vector": (5,), "empty": (0, 4), "images": (4, 3, 3, 3), "exact": (2, 2)}
    held = {n: torch.zeros((*lead, *shape)).requires_grad_() for n, shape in shapes.items()}
    held["exact"] = held["exact"].detach().double().requires_grad_()
    for n, p in held.items():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype) * 3
        if n == "images":
            p.grad = p.grad.transpose(-1, -2).contiguous().transpose(-1, -2)
    held["frozen"] = torch.zeros(*lead, 2).requires_grad_()
    grads = {n: p.grad.double().clone() for n, p in held.items() if p.grad is not None}
    clip_gradients(held, 1.0, stacked=stacked)
    for i in range(3 if stacked else 1):
        own = {n: g[i] if stacked else g for n, g in grads.items()}
        norm = sum(float(v) ** 2 for g in own.values() for v in g.flatten()) ** 0.5
        for n, g in own.items():
            found = held[n].grad[i] if stacked else held[n].grad
            torch.testing.assert_close(found.double(), g / norm, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("stacked", [False, True])
def test_clipping_stays_on_the_device_and_reads_nothing_back(stacked):
    held = {n: torch.zeros(2, *shape, device="meta").requires_grad_() for n, shape in {"a": (3,), "b": (2, 3)}.items()}
    for p in held.values():
        p.grad = torch.zeros_like(p)
    clip_gradients(held, 1.0, stacked=stacked)
    assert {p.grad.device.type for p in held.values()} == {"meta"}
