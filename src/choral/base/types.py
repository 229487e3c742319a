"""Shared aliases and the axis vocabulary.

Axis names, in the order in which they stand: `member` (always first), `batch`, `class` or `target`, then
`channel`, `height`, `width` for inputs. Parameters are flat dicts from the network's own names to tensors.
"""

from collections.abc import Callable

from torch import Tensor, nn

Params = dict[str, Tensor]
Slots = dict[str, Params]
Build = Callable[[], nn.Module]
Builds = Build | nn.Module | tuple[Build | nn.Module, ...]
"""What makes the networks of an ensemble: one factory or network, or several where members differ in their layers."""
