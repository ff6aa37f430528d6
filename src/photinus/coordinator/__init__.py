"""The coordinator: membership, leases, phases, agreed parameters, checkpoints."""
