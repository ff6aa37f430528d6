"""Floor 1: what is trained."""
