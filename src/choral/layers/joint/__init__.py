"""Several members in one module tree."""
