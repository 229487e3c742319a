"""Packing is exact bit for bit and small enough."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from choral.base.errors import InputError, RunError
from choral.masks.bitmask import pack, pack_bits, unpack, unpack_bits


def bits_of(tensor):
    return tensor.contiguous().view(torch.uint8) if tensor.numel() else tensor


@settings(deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**31),
)
def test_round_trip_is_exact(shape, dtype, share, seed):
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(shape, generator=g) < share
    value = (torch.randn(shape, generator=g) * 50).to(dtype).masked_fill(~mask, 0)
    plain = torch.randn(3, generator=g)
    stored = load(save(pack({"net.w": value, "net.b": plain}, {"net.w": mask})))
    values, masks = unpack(stored)
    assert set(values) == {"net.w", "net.b"}
    assert set(masks) == {"net.w"}
    assert masks["net.w"].dtype == torch.bool
    assert torch.equal(masks["net.w"], mask)
    assert values["net.w"].dtype == dtype
    assert values["net.w"].shape == value.shape
    if value.dim():
        assert torch.equal(bits_of(values["net.w"]), bits_of(value))
    assert torch.equal(values["net.b"], plain)


def test_kept_values_that_are_not_numbers_survive():
    value = torch.tensor([float("nan"), float("inf"), -0.0, 0.0])
    mask = torch.tensor([True, True, True, False])
    assert torch.equal(bits_of(unpack(pack({"w": value}, {"w": mask}))[0]["w"]), bits_of(value))


@settings(deadline=None, derandomize=True)
@given(st.lists(st.booleans(), max_size=70))
def test_bits_are_little_endian(flags):
    mask = torch.tensor(flags, dtype=torch.bool)
    number = sum(1 << i for i, flag in enumerate(flags) if flag)
    assert bytes(pack_bits(mask).tolist()) == number.to_bytes(-(-len(flags) // 8), "little")
    assert torch.equal(unpack_bits(pack_bits(mask), mask.shape), mask)


def test_half_the_weights_take_at_most_056_of_the_bytes():
    g = torch.Generator().manual_seed(0)
    values = {f"layer{i}.weight": torch.randn(64, 64, generator=g) for i in range(3)}
    masks = {
        name: torch.zeros(64 * 64).index_fill(0, torch.randperm(4096, generator=g)[:2048], 1).view(64, 64).bool()
        for name in values
    }
    values = {name: value * masks[name] for name, value in values.items()}
    dense, packed = len(save(values)), len(save(pack(values, masks)))
    assert packed <= 0.56 * dense


def test_what_would_be_lost_is_refused():
    mask = {"w": torch.tensor([True, False])}
    with pytest.raises(InputError, match="1 values that its mask removes"):
        pack({"w": torch.ones(2)}, mask)


def test_damaged_files_are_refused():
    packed = pack({"w": torch.tensor([0.0, 2.0, 1.0])}, {"w": torch.tensor([False, True, True])})
    with pytest.raises(RunError, match="keeps 2 values, 1 are stored"):
        unpack(packed | {"w:kept": torch.ones(1)})
