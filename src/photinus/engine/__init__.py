"""Where workers run: local processes, Spark tasks, or the simulator."""
