"""Which of a network's layers a pass calls, in what order, which of them read the inputs and which the output needs."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from choral.base import draws


def with_ends(first: tuple[str, ...], last: str) -> AbstractContextManager[None]:
    """Let conversions take layers for those that read the inputs and give the output, instead of those declared first and last."""
    return draws.under(ends=(first, last))


def first_layers(names: Sequence[str]) -> list[str]:
    """Return the layers that read the inputs: those that a dry run found, none perhaps, or the one that is declared first."""
    found = draws.now().ends[0]
    return [n for n in found if n in names] if found else list(names[:1])


def output_last(names: Sequence[str]) -> list[str]:
    """Return layers in the order of declaration, but the one that gives the output, if it is known, at the end.

    >>> with with_ends((), "head"):
    ...     output_last(["head", "body", "aside"])
    ['body', 'aside', 'head']
    """
    last = draws.now().ends[1]
    return [*(n for n in names if n != last), last] if last in names else list(names)


class Called(NamedTuple):
    """A call of a module: whether the output needs it, and whether it reads nothing that layers or bare parameters gave."""

    layer: str
    needed: bool
    reads_input: bool


class Calls:
    """Records the calls of a network's modules within its block; `of` judges them by the autograd graph of the output.

    Args:
        network: any network, in the mode it is to run in.
        layers: names of the layers whose outputs are no longer inputs. Frozen parameters require gradients within the block then, so that the graph
            shows their layers too; None keeps no graph.

    Attributes:
        stack: the modules being run, innermost last; after an error, those it came from.
        called: the names of all that ran, in the order of their first calls, and whether what they read requires a gradient.
    """

    def __init__(self, network: nn.Module, layers: Sequence[str] | None = None):
        self._names = {module: name for name, module in network.named_modules()}
        self._layers = None if layers is None else [network.get_submodule(name) for name in layers]
        self._frozen = [] if layers is None else [p for p in network.parameters() if not p.requires_grad]
        self._made: list[tuple[str, list[Node], list[Node]]] = []  # a module, and the nodes of what it read and gave
        self.stack: list[nn.Module] = []
        self.called: dict[str, bool] = {}

    def __enter__(self) -> Self:
        for p in self._frozen:
            p.requires_grad_(p.is_floating_point())
        self._hooks = [m.register_forward_pre_hook(self._enter, with_kwargs=True) for m in self._names]
        self._hooks += [m.register_forward_hook(self._leave, with_kwargs=True) for m in self._names]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for p in self._frozen:
            p.requires_grad_(False)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stack.append(module)
        given = (*args, *kwargs.values())
        self.called[self._names[module]] = any(isinstance(t, Tensor) and t.requires_grad for t in given)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        self.stack.pop()
        if self._layers is not None:
            given = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
            self._made.append((self._names[module], list(_nodes(given)), list(_nodes(found))))

    @property
    def name(self) -> str:
        """The name of the innermost module being run."""
        return self._names[self.stack[-1]]

    @property
    def where(self) -> str:
        """The innermost module being run, with its kind; nothing if there is none."""
        return f"{self.name!r} ({type(self.stack[-1]).__name__})" if self.stack else ""

    def of(self, output: Any) -> list[Called]:
        """Return the calls in their order; where it cannot be told whether the output needs one it is taken to."""
        layers = self._layers or ()
        own = {m for m in self._names if m in layers or not type(m).__module__.startswith("torch.")}
        bare = {id(p) for m in own for p in m.parameters(recurse=m in layers)}
        changed = _depending(_ancestors(node for _, given, _ in self._made for node in given), bare)
        needed = _ancestors(_nodes(output)) if isinstance(output, Tensor) and output.requires_grad else None
        return [
            Called(name, needed is None or not found or not needed.keys().isdisjoint(found), changed.isdisjoint(given))
            for name, given, found in self._made
        ]


def executed(network: nn.Module, example: Any) -> list[Called]:
    """Return the calls of modules in a pass in evaluation mode, in their order; a tuple as example holds several arguments."""
    with evaluating(network), Calls(network, ()) as calls, torch.enable_grad(), draws.keyed(0):
        output = network(*(example if isinstance(example, tuple) else (example,)))
    return calls.of(output)


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Run a block with the network in evaluation mode; every module has its own mode again afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def parameters_of(*outputs: Tensor) -> list[Tensor]:
    """Return the leaves of the graph that outputs depend on: parameters, and inputs that require a gradient."""
    leaves = (getattr(node, "variable", None) for node in _ancestors(_nodes(outputs)))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _nodes(value: Any) -> Iterator[Node]:
    """Yield the nodes of tensors, and of those they are views of: writing into a view gives it another node."""
    if isinstance(value, Tensor) and value.requires_grad:
        yield get_gradient_edge(value).node
        if value._is_view() and value._base is not None and value._base.requires_grad:
            yield get_gradient_edge(value._base).node
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _nodes(part)


def _reached(nodes: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> dict[Node, None]:
    """Return nodes and all that follow from them."""
    found = dict.fromkeys(nodes)
    stack = list(found)
    while stack:
        for node in following(stack.pop()):
            if node not in found:
                found[node] = None
                stack.append(node)
    return found


def _before(node: Node) -> list[Node]:
    return [before for before, _ in node.next_functions if before is not None]


def _ancestors(nodes: Iterable[Node]) -> dict[Node, None]:
    """Return nodes and all that they were computed from."""
    return _reached(nodes, _before)


def _depending(nodes: Collection[Node], leaves: set[int]) -> set[Node]:
    """Return those of the nodes of a graph that were computed from some of its leaves."""
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for before in _before(node):
            users[before].append(node)
    ours = (node for node in nodes if id(getattr(node, "variable", None)) in leaves)
    return set(_reached(ours, lambda node: users[node]))
