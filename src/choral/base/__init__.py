"""Shared foundations: errors, values, seeds, random draws."""
