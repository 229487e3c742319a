"""Choosing by validation: several methods on a short list, and an ensemble of the members that predict best together."""
