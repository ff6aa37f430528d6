"""Floor 1: how workers agree, as pure functions."""
