"""Floor 1: rows on their way to the model."""
