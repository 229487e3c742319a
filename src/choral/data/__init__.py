"""Data: sources the engine reads, input transforms, tables and built-in problems."""

from choral.data.inputs import HorizontalFlip, Normalize, PadCrop, Transform, prepare
from choral.data.sources import DatasetSource, Source, TensorSource, source_of

__all__ = [
    "DatasetSource", "HorizontalFlip", "Normalize", "PadCrop", "Source", "TensorSource", "Transform", "prepare", "source_of",
]  # fmt: skip
