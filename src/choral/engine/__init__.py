"""The engine: carries out any plan on any data, step by step, with checkpoints, and answers for the networks it trained."""
