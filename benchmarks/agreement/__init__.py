"""Experiments on ways of agreeing, in virtual time: what helps, what hurts, and by how much."""
