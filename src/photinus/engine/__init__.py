"""Floor 3: where processes live: simulated, local, on Spark."""
