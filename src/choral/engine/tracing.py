"""Record the operations of one stacked training step, so that later steps run them without the cost of mapping.

For small networks most of a mapped step is Python: vmap, functional_call, autograd. The recorded graph is the same
arithmetic (forward, loss, backward) as a flat list of tensor operations. It holds no randomness: a step that draws is
never recorded.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_SAME_SHAPE = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default}


def record(function: Callable[..., Any], example: list[Tensor]) -> Callable[..., list[Tensor]]:
    """Return the operations a function performs on tensors like the example, as a function of its own.

    Args:
        function: takes tensors and returns a list of tensors; its shapes are fixed by the example.
        example: tensors of the right shapes.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(function)(*example)
    _drop_idle(graph)
    return graph.forward


def _drop_idle(graph: GraphModule) -> None:
    """Take out operations that change nothing: views to the same shape, multiplications by one."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
            continue
        before, after = _shape(node.args[0]), _shape(node)
        idle = node.target in _SAME_SHAPE and before is not None and before == after
        one = node.target is torch.ops.aten.mul.Scalar and node.args[1] == 1
        if idle or one:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _shape(node: Node) -> tuple[int, ...] | None:
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        return tuple(value.shape)
    meta = node.meta.get("tensor_meta")
    return None if meta is None else tuple(meta.shape)
