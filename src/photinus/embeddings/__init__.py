"""Embeddings: vectors of words, items and nodes, learnt from sequences."""
