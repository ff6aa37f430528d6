"""The training loop, a worker's phases around it, the plan of phases, and snapshots."""
