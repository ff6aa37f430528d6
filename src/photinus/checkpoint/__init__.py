"""Checkpoints and the run folder."""
