"""The training loop, a worker's life around it, the plan of phases, and snapshots."""
