"""Floor 4: what a user asks for."""
