"""Jobs: train, resume, measure, compare."""
