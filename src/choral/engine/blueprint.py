"""Blueprint: builds joint networks and states from a factory or a given network."""

import copy
import math
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer
from torch.nn.parameter import is_lazy as is_unsettled

from choral import models
from choral.base import batches, draws, rng
from choral.base.devices import is_processor
from choral.base.errors import InputError
from choral.base.interface import Interface, evaluating, is_lazy
from choral.base.types import Build, Builds, Params
from choral.engine.identity import fingerprint
from choral.layers.convert import as_linear, copy_of, layers_of
from choral.layers.joint.network import Joint, channels_last
from choral.layers.kernels import pointwise
from choral.layers.keyed import keyed
from choral.plan.state import State
from choral.structures.base import Structure

_PLAIN = Interface()
_TELLING = 64  # numbers of a tensor from which its spread tells a drawn one from a trained one


def bare(build: Build | nn.Module) -> nn.Module:
    """Return a new network from the user's factory, drawn from the global generator; a given network is copied."""
    if not callable(build):
        raise InputError(f"build is {build!r}; give a function that returns a new nn.Module, or an nn.Module.")
    is_given = isinstance(build, nn.Module)
    network = build if is_given else build()
    if not isinstance(network, nn.Module):
        raise InputError(f"build() returned {type(network).__name__}; it must return a new nn.Module each time.")
    network = uncompiled(network)
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    watched = next((n for n, p in network.named_parameters() if any(getattr(p, kind, None) for kind in kinds)), None)
    if watched is not None:
        said = f"build: parameter {watched!r} has a hook on its gradient (register_hook), which copies do not keep"
        raise InputError(f"{said}; let forward do what it does.")
    if not is_given:
        return network
    lazy = [b for b in network.buffers() if is_unsettled(b)]  # which torch cannot copy
    memo = {id(b): UninitializedBuffer(dtype=b.dtype, device=b.device) for b in lazy}  # type: ignore[call-arg]  # torch's stub
    return copy_of(network, memo)


def uncompiled(network: nn.Module) -> nn.Module:
    """Return the original of a compiled network: conversions change what would have been compiled."""
    inner = network._modules.get("_orig_mod") if type(network).__name__ == "OptimizedModule" else None
    return network if inner is None else inner


def floats_of(network: nn.Module) -> torch.dtype:
    """Return the dtype of real inputs of a network: that of its first floating-point parameter."""
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)


class Blueprint:
    """Builds joint networks for states: builds, converts, shrinks, loads and reads values. Several builds if members differ in layers."""

    def __init__(
        self,
        build: Builds,
        structure: Structure,
        *,
        device: torch.device,
        images: bool,
        interface: Interface = _PLAIN,
        floats: torch.dtype | None = None,
        built: nn.Module | None = None,
    ):
        self._builds = tuple(build) if isinstance(build, tuple | list) and build else (build,)
        first: Any = self._builds[0]
        self.structure = structure
        self.device = device
        self.images = images and "channels_last" not in interface.avoids
        self.interface = interface
        self._floats = floats
        with rng.seeded(0, "sizes"):  # which lazy layers draw weights for
            self.parent = self._with_sizes(bare(first)) if isinstance(first, nn.Module) else None
        self._build, self._built = first, built
        self._skeletons: dict[str, nn.Module] = {}

    def plain(self, *, kept: bool = False) -> nn.Module:
        """Return a new plain network, drawn from the current global generator; a given one may keep its weights."""
        if self.parent is None:
            return self._read(self._with_sizes(bare(self._build)))
        network = copy.deepcopy(self.parent)
        if not kept:
            redraw(network)
        return self._read(network)

    def _read(self, network: nn.Module) -> nn.Module:
        """Return a plain network as it is converted."""
        for _, layer in layers_of(network, (nn.Embedding, nn.EmbeddingBag)):
            setattr(layer, "sparse", False)  # noqa: B010  # mypy takes it for a tensor; the same gradients, in a form that penalties, clipping and stacks take
        return self.interface.attach(as_linear(network))

    @property
    def brings_weights(self) -> bool:
        """Whether the user gave trained weights; networks too small to tell are assumed trained."""
        if self.parent is not None:
            return self.has_learned or all(p.numel() < _TELLING for p in self.parent.parameters())
        return self.share_alike > 0.5

    @cached_property
    def share_alike(self) -> float:
        """The share of the drawn weights that is the same in two networks of different seeds; 1 if a function always returns the same."""
        one, other = self._seeded("one") if self._built is None else self._built, self._seeded("other")
        pairs = [(a, b) for a, b in zip(one.parameters(), other.parameters()) if a.requires_grad and a.shape == b.shape]
        drawn = [(a, b) for a, b in pairs if a.numel() > 1 and not bool((a == a.flatten()[0]).all())]
        alike = sum(a.numel() for a, b in drawn if torch.equal(a.to(b), b))
        return alike / max(sum(a.numel() for a, _ in drawn), 1)

    @cached_property
    def has_learned(self) -> bool:
        """Whether a given network was trained: by traces of training, or by weights of another scale than new ones."""
        given = self._build
        if not isinstance(given, nn.Module) or is_lazy(given):
            return False
        if any(p.grad is not None for p in given.parameters()):
            return True
        new = copy.deepcopy(given)
        with rng.seeded(0, "new"):
            redraw(new)
        return any(_is_of_other_size(a, b) for a, b in zip(given.state_dict().values(), new.state_dict().values()))

    def _seeded(self, word: str) -> nn.Module:
        with rng.seeded(0, word), rng.elsewhere(rng.key(0, word)):
            return self._with_sizes(bare(self._build))

    def _with_sizes(self, network: nn.Module) -> nn.Module:
        """Return the network with its lazy layers settled, by a pass over zeros of the shapes it reads."""
        if is_lazy(network):
            if self.interface.reads is None:
                raise InputError("the network has lazy layers, whose sizes its first input decides; give data too.")
            with evaluating(network), torch.no_grad():
                self.interface.called(network, batches.made_up(self.interface.reads, 2))
        return network

    def spec(self) -> dict[str, Any] | list[dict[str, Any]] | None:
        """Return the name and arguments by which choral's own zoo builds the plain network, of each if there are several; None for others."""
        with rng.seeded(0, "spec"):
            networks = [self._built or self.plain(), *map(bare, self._builds[1:])]
        known = [spec for spec in map(models.spec_of, networks) if spec is not None]
        return None if len(known) < len(networks) else known[0] if len(known) == 1 else known

    def fingerprint(self) -> dict[str, Any]:
        """Return what the plain networks compute from their weights, as far as Python shows it."""
        with rng.seeded(0, "fingerprint"), rng.elsewhere(0):
            return fingerprint(self.plain(), *(b if isinstance(b, nn.Module) else b() for b in self._builds[1:]))

    def joint(self, seed: int, *place: int | str, kept: bool = False) -> nn.Module:
        """Return a new joint network drawn with the seed of a place; with `kept`, at the given weights."""
        with rng.seeded(seed, *place, "build"), rng.elsewhere(rng.key(seed, *place, "build")):
            network = self.plain(kept=kept)
        return self._converted(network, seed, *place, kept=kept)

    def _converted(self, network: nn.Module, seed: int, *place: int | str, kept: bool) -> nn.Module:
        structure = self.structure.keeping() if kept else self.structure
        with rng.seeded(seed, *place, "convert"), draws.under(ends=(self.interface.first, self.interface.last)):
            joint = structure.convert(network, rng.generator(seed, *place, "structure"))
        if isinstance(joint, Joint):
            joint.avoid(self.interface.avoids)
        return joint

    def fresh(self, seed: int, *place: int | str) -> State:
        """Return the state of a new joint network; it starts at trained weights, if there are any and the structure allows it."""
        kept = self.structure.keeping() != self.structure and self.brings_weights
        self.network()
        self._built = None  # whose values are copied into the network by now
        return state_of(self.joint(seed, *place, kept=kept))

    def given(self, seed: int, *place: int | str) -> State | None:
        """Return the state of the given parent, converted by the structure; None for a factory."""
        return None if self.parent is None else state_of(self.joint(seed, *place, kept=True))

    @property
    def floats(self) -> torch.dtype:
        """The type in which networks read real numbers."""
        return floats_of(self.network())

    def _settle(self, network: nn.Module) -> nn.Module:
        network = nn.Module.to(copy_of(network), self.device, self._floats)
        for module in network.modules() if not is_processor(self.device) else ():
            if isinstance(module, Joint):
                module.choose_kernel()
        if self.images:
            network = channels_last(network)
            pointwise.guard(network)
        if self.interface.reads is not None:
            self._learn(network)
        return network

    def _learn(self, network: nn.Module) -> None:
        """Let the structure pass made-up rows through a network, where it wants to."""

        def run(rows: int) -> None:
            assert self.interface.reads is not None
            x = batches.moved(batches.made_up(self.interface.reads, rows), self.device)
            x = batches.mapped(lambda t: t.to(self._floats) if self._floats and t.is_floating_point() else t, x)
            # the user's code may need other numbers than zeros
            with torch.no_grad(), rng.seeded(0, "look"), keyed(0), suppress(Exception):
                network(self.structure.feed(x, None)[0])

        with evaluating(network):
            self.structure.learn(network, run)

    def network(self, form: dict[str, Any] | None = None) -> nn.Module:
        """Return the shared joint network of a form; its values are whatever was last put in."""
        name = repr(form) if form else "null"
        if name not in self._skeletons:
            if form and "network" in form:
                self._skeletons[name] = self._other(form["network"])
            elif form:
                from choral.compaction import shrink

                self._skeletons[name] = self._settle(shrink(self.network(), form))
            elif self._built is None:
                self._skeletons[name] = self._settle(self.joint(0, "skeleton"))
            else:
                whole = self._converted(self._read(copy_of(self._built)), 0, "skeleton", kept=False)
                self._skeletons[name] = self._settle(whole)
        return self._skeletons[name]

    def _other(self, number: int) -> nn.Module:
        """Return the joint network of another factory than the first."""
        if not 0 < number < len(self._builds):
            kinds = len(self._builds)
            raise InputError(f"a member is of network {number}, but build makes {kinds} kind(s); give as many.")
        build = self._builds[number]
        options: dict[str, Any] = {"device": self.device, "images": self.images, "interface": self.interface}
        return Blueprint(build, self.structure, **options, floats=self._floats).network()

    def load(self, state: State) -> nn.Module:
        """Return the shared network of the state's form, holding the state's values."""
        return filled(self.network(state.form), state)

    def holding(self, state: State) -> nn.Module:
        """Return a network of its own that holds the state's values, for evaluation: nothing else writes into it."""
        network = copy_of(self.network(state.form)).requires_grad_(False).eval()
        # torch's copy of weights for one channel is no longer in channels-last format
        return filled(channels_last(network) if self.images else network, state)


def filled(network: nn.Module, state: State) -> nn.Module:
    """Return the network with the state's values."""
    with torch.no_grad():
        for name, p in network.named_parameters():
            p.copy_(state.params[name])
        for name, b in network.named_buffers():
            b.copy_(state.buffers[name])
    return network


def state_of(network: nn.Module, *, here: bool = False) -> State:
    """Return a network's parameters and buffers as a state: contiguous copies on the CPU, or `here` on its device."""

    def copied(tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        return copy if here else copy.cpu()

    params: Params = {n: copied(p) for n, p in network.named_parameters()}
    return State(params, {n: copied(b) for n, b in network.named_buffers()})


def redraw(network: nn.Module) -> None:
    """Draw every parameter anew, in place: by reset methods, or by shuffling the given values; frozen parameters keep theirs."""
    frozen: list[Tensor] = [p for p in network.parameters() if not p.requires_grad]
    for module in network.modules():  # statistics of a frozen layer are frozen too
        own = list(module.parameters(recurse=False))
        frozen += module.buffers(recurse=False) if own and not any(p.requires_grad for p in own) else ()
    kept = {t: t.detach().clone() for t in frozen}
    covered: set[int] = set()
    for module in network.modules():
        reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
        if callable(reset):
            reset()
            covered |= {id(p) for p in module.parameters(recurse=False)}
    with torch.no_grad():
        for p in network.parameters():
            if id(p) not in covered:
                p.copy_(p.flatten()[torch.randperm(p.numel())].view_as(p))
        for tensor, value in kept.items():
            tensor.copy_(value)


def _is_of_other_size(given: Tensor, new: Tensor) -> bool:
    """Return whether the spread of two tensors differs by more than chance explains, or one is constant and they differ."""
    if given.shape != new.shape or (given.is_floating_point() and given.numel() < 2):
        return False
    if not given.is_floating_point():
        return not torch.equal(given, new)
    if float(new.double().std()) == 0:
        return not torch.allclose(given, new)
    if given.numel() < _TELLING:  # the spread of a few drawn numbers says nothing
        return False
    one, other = (float(t.double().square().mean().sqrt()) for t in (given, new))
    return abs(one / other - 1) > 0.02 + 6 / math.sqrt(given.numel())
