"""Objectives: likelihoods and penalties."""
