"""Rows on their way to the model."""
