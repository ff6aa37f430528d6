"""Clusters: submission, the environment that travels, Java."""
