"""What computes: devices by name, what this machine has, and how fast it is."""
