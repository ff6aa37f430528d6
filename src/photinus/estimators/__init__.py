"""Floor 5: the doors of Spark ML."""
