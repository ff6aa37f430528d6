"""Experiments on strategies, in virtual time: what helps, what hurts, and by how much."""
