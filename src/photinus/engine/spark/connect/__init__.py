"""Training through Spark Connect."""
