"""The engine: runs any plan on any data, with checkpoints, and evaluates the trained networks."""
