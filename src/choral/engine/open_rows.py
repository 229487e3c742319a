"""Let one record answer any number of rows, where a new number would need a record of its own.

Gain: 20 stacked perceptrons answer 1,000 rows twice as fast as with records of fixed numbers of rows, which were filled up with others.
"""

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from choral.engine.rewriting import shape

_ops = torch.ops.aten
_PARTS = {_ops.slice, _ops.select, _ops.split, _ops.split_with_sizes, _ops.unbind, _ops.narrow}
_END = (1 << 63) - 1  # of a slice that has none


def free_rows(module: GraphModule, rows: int) -> None:
    """Let a graph take any number of rows, not only the prime number it was recorded with.

    Whatever is a multiple of that prime in lists of sizes becomes that multiple of the rows there are. A size that is one by chance is
    changed too, and a constant may have the rows; so the graph must be tried with another number of them. ValueError if it takes some
    of the rows by their numbers: others would need other pieces.
    """
    if any(_takes_some(node, rows) for node in module.graph.nodes):
        raise ValueError("forward code cuts its input into pieces")
    given = [node for node in module.graph.nodes if node.op == "placeholder"]
    with module.graph.inserting_after(given[-1]):
        found = module.graph.call_method("size", (given[0], 0))

    def freed(size: Any) -> Any:
        if type(size) is not int or size <= 0 or size % rows:
            return size
        return found if size == rows else module.graph.call_function(operator.mul, (found, size // rows))

    for node in list(module.graph.nodes):
        with module.graph.inserting_before(node):
            node.args = tuple(map_aggregate(a, freed) if isinstance(a, list) else a for a in node.args)
    module.graph.eliminate_dead_code()
    module.recompile()


def _takes_some(node: Node, rows: int) -> bool:
    """Return whether an operation takes a part of the rows, or all only because there are no more."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.overloadpacket not in _PARTS:
        return False
    given: dict[str, Any] = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | node.kwargs
    whole, is_open = shape(given["self"]), given.get("end", 0) in (None, _END)
    return whole is None or (whole[given.get("dim", 0)] % rows == 0 and not (is_open and shape(node) == whole))
