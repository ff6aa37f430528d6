"""Floor 1: whole checkpoints or none."""
