"""The ensemble: predictions, the corrections applied to them, saving and loading."""
