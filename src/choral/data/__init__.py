"""Data: sources that the engine reads, input transforms, and built-in problems."""

from choral.data.inputs import CutMix, HorizontalFlip, Mixup, Normalize, PadCrop, RandAugment, Transform, prepare
from choral.data.sources import DatasetSource, Source, TensorSource, source_of

__all__ = [
    "CutMix", "DatasetSource", "HorizontalFlip", "Mixup", "Normalize", "PadCrop", "RandAugment", "Source", "TensorSource",
    "Transform", "prepare", "source_of",
]  # fmt: skip
