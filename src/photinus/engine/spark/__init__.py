"""Workers as tasks of Spark."""
