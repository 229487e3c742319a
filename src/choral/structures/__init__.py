"""Structures: how members share weights and read a batch."""

from choral.structures.base import Independent, Structure

__all__ = ["Independent", "Structure"]
