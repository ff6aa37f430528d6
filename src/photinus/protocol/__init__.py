"""What workers and the coordinator say to each other, and who says it."""
