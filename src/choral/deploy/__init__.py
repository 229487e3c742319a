"""Deployment: an ensemble as one file that any machine can run, and a server for it."""
