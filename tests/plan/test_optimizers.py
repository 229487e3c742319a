import pytest
import torch

from choral.base.errors import InputError
from choral.plan import SGD, Adam, AdamW, Muon
from choral.plan.optimizers import Member, Stepper, clip_gradients

EVERY = [SGD(), SGD(nesterov=True, weight_decay=0.01), Adam(), AdamW()]


def params(seed=0, branches=None):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (3, 4), "b": (3,)}
    lead = () if branches is None else (branches,)
    return {n: torch.randn(*lead, *s, generator=generator).requires_grad_() for n, s in shapes.items()}


def test_decay_groups_leave_vectors_and_named_parameters_alone():
    for stacked, p in ((False, params()), (True, params(branches=2))):
        groups = SGD(weight_decay=0.1, decay_vectors=False).groups(p, stacked=stacked)
        assert {g["weight_decay"]: len(g["params"]) for g in groups} == {0.1: 1, 0.0: 1}
        groups = SGD(weight_decay=0.1).groups(p, stacked=stacked, undecayed=("w",))
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


def fill(p, seed):
    generator = torch.Generator().manual_seed(seed)
    for t in p.values():
        t.grad = torch.randn(t.shape, generator=generator)


DIFFERENT = {
    "SGD": [SGD(momentum=0.0), SGD(weight_decay=0.1), SGD(momentum=0.5, weight_decay=0.3)],
    "AdamW": [AdamW(), AdamW(weight_decay=0.0), AdamW(weight_decay=0.3)],
    "Muon": [Muon(), Muon(momentum=0.5, weight_decay=0.0), Muon(matrix_rate=2.0)],
}


@pytest.mark.parametrize("values", DIFFERENT.values(), ids=DIFFERENT)
def test_stacked_members_that_differ_get_the_bits_they_get_alone_also_when_resumed(values):
    members = [Member(value, rate) for value, rate in zip(values, (1.0, 0.3, 2.0))]
    stacked = params(branches=3)
    alone = [{n: p[i].detach().clone().requires_grad_() for n, p in stacked.items()} for i in range(3)]
    together = Stepper(stacked, members, stacked=True, apart=True)
    steppers = [Stepper(p, [member]) for p, member in zip(alone, members)]
    for step in range(6):
        if step == 3:
            memories, together = together.memories(), Stepper(stacked, members, stacked=True, apart=True)
            together.restore(memories)
        fill(stacked, step)
        if step in (0, 4):
            stacked["b"].grad = None  # one step without some gradient, also the first
        for i, p in enumerate(alone):
            for n, t in p.items():
                t.grad = None if stacked[n].grad is None else stacked[n].grad[i].clone()
        for stepper in (together, *steppers):
            stepper.step(0.1 / (step + 1))
        assert all(torch.equal(stacked[n][i], p[n]) for i, p in enumerate(alone) for n in p)
    for found, stepper in zip(together.memories(), steppers):
        (wanted,) = stepper.memories()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[n], wanted[n]) for n in wanted)


@pytest.mark.parametrize("optimizer", [SGD(nesterov=True), Adam(), AdamW(), Muon()])
@pytest.mark.parametrize("branches", [None, 3])
def test_a_restored_memory_goes_on_as_if_never_stopped(optimizer, branches):
    def made(p):
        return Stepper(p, [Member(optimizer)] * (branches or 1), stacked=branches is not None)

    def steps(p, stepper, seeds):
        for seed in seeds:
            fill(p, seed)
            stepper.step(0.1)

    whole = params(branches=branches)
    stepper = made(whole)
    steps(whole, stepper, range(3))
    halfway = {n: t.detach().clone().requires_grad_() for n, t in whole.items()}
    again = made(halfway)
    again.restore(stepper.memories())
    steps(whole, stepper, range(3, 6))
    steps(halfway, again, range(3, 6))
    assert all(torch.equal(whole[n], halfway[n]) for n in whole)


BY_TORCH = [
    (SGD(momentum=0.0), torch.optim.SGD, {}),
    (SGD(nesterov=True, weight_decay=0.1), torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (Adam(), torch.optim.Adam, {}),
    (AdamW(), torch.optim.AdamW, {}),
]


@pytest.mark.parametrize(("value", "kind", "settings"), BY_TORCH)
def test_steps_are_torchs_bit_by_bit(value, kind, settings):
    ours, theirs = params(), params()
    stepper, torchs = Stepper(ours, [Member(value)]), kind(theirs.values(), fused=True, **settings)
    for i in range(6):
        for p in (ours, theirs):
            fill(p, i)
            p["b"].grad = None if i == 3 else p["b"].grad  # one step without some gradient
        torchs.param_groups[0]["lr"] = 0.1 / (i + 1)
        torchs.step()
        stepper.step(0.1 / (i + 1))
        assert all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_a_gradient_that_comes_later_begins_its_momentum_then():
    """The fused kernel takes the momentum of all parameters or of none."""
    ours, theirs = params(), params()
    stepper, torchs = Stepper(ours, [Member(SGD())]), torch.optim.SGD(theirs.values(), lr=0.1, momentum=0.9)
    for i in range(4):
        for p in (ours, theirs):
            fill(p, i)
            p["b"].grad = None if i < 2 else p["b"].grad
        stepper.step(0.1)
        torchs.step()
    assert all(torch.allclose(ours[n], theirs[n], atol=1e-6) for n in ours)


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


@pytest.mark.parametrize("optimizer", EVERY)
def test_memory_in_the_order_of_a_file_meets_weights_with_channels_last(optimizer):
    whole = images()
    stepper = Stepper(whole, [Member(optimizer)])
    take(whole, stepper, 3, 1)
    memory = {n: t.contiguous() for n, t in stepper.memories()[0].items()}
    halfway = {n: t.detach().clone().requires_grad_() for n, t in whole.items()}
    take(whole, stepper, 3, 2)
    again = Stepper(halfway, [Member(optimizer)])
    again.restore([memory])
    take(halfway, again, 3, 2)
    assert all(torch.equal(whole[n], halfway[n]) for n in whole)


@pytest.mark.parametrize("optimizer", EVERY)
def test_gradients_in_another_order_than_their_weights_do_the_same(optimizer):
    usual, other = images(), images()
    for p, order in ((usual, torch.preserve_format), (other, torch.contiguous_format)):
        take(p, Stepper(p, [Member(optimizer)]), 4, 1, order=order)
    assert all(torch.equal(usual[n], other[n]) for n in usual)


@pytest.mark.parametrize("optimizer", EVERY)
def test_memory_is_stacked_and_taken_apart_by_network_also_that_of_scalars(optimizer):
    alone = [images(seed) for seed in (1, 2)]
    steppers = [Stepper(p, [Member(optimizer)]) for p in alone]
    for p, stepper in zip(alone, steppers):
        take(p, stepper, 2, 3)
    stacked = {n: torch.stack([p[n].detach() for p in alone]).requires_grad_() for n in alone[0]}
    together = Stepper(stacked, [Member(optimizer)] * 2, stacked=True)
    together.restore([stepper.memories()[0] for stepper in steppers])
    for _ in range(2):
        for n, t in stacked.items():
            t.grad = torch.stack([torch.full_like(p[n], 0.5 + i) for i, p in enumerate(alone)])
            for i, p in enumerate(alone):
                p[n].grad = torch.full_like(p[n], 0.5 + i)
        for stepper in (together, *steppers):
            stepper.step(0.1)
    for i, (p, stepper, found) in enumerate(zip(alone, steppers, together.memories())):
        (expected,) = stepper.memories()
        assert all(torch.allclose(stacked[n][i], p[n], atol=1e-6) for n in p)
        assert found.keys() == expected.keys()
        assert all(torch.allclose(found[n], expected[n], atol=1e-6) for n in expected)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_a_rate_of_its_own_is_that_of_an_optimizer_of_its_own(kind, stacked):
    """'b' steps as if its schedule were a quarter of the rate."""
    value, plain = kind(weight_decay=0.1, rates=(("b", 0.25), ("*", 1.0))), kind(weight_decay=0.1)
    branches = 2 if stacked else None
    ours, alone = params(branches=branches), params(branches=branches)
    stepper = Stepper(ours, [Member(value)] * (branches or 1), stacked=stacked)
    single = {n: Stepper({n: p}, [Member(plain)] * (branches or 1), stacked=stacked) for n, p in alone.items()}
    for i in range(5):
        fill(ours, i)
        fill(alone, i)
        rate = 0.1 / (i + 1)
        stepper.step(rate)
        for n, own in single.items():
            own.step(rate * 0.25 if n == "b" else rate)
    assert all(torch.equal(ours[n], alone[n]) for n in ours)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: SGD(momentum=1.0), "momentum"),
        (lambda: SGD(clip=0.0), "clip"),
        (lambda: AdamW(weight_decay=float("nan")), "weight_decay"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas"),
        (lambda: Muon(steps=0), "steps"),
    ],
)
def test_settings_out_of_range_are_refused(make, name):
    with pytest.raises(InputError, match=f"{name} is .*; give"):
        make()


def test_a_factor_below_zero_is_refused():
    with pytest.raises(InputError, match="finite number of 0 or more"):
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
