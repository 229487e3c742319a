"""Ensembles: predictions, corrections, saving and loading."""
