"""Common image corruptions for uint8 arrays (row, height, width, channel) of any size, seeded by row."""

from choral.corruptions.functions import COMMON, EXTRA, FAMILIES, SEVERITIES, corrupt

__all__ = ["COMMON", "EXTRA", "FAMILIES", "SEVERITIES", "corrupt"]
