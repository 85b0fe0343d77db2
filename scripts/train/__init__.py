"""Trains the small checkpoints under tests/data/checkpoints. Knows training; byref itself imports none of it."""
