"""Floor 2: worker, owner, coordinator, and the one training loop."""
