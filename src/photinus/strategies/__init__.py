"""How workers agree, as pure functions."""
