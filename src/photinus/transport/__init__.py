"""Floor 1: frames, encrypted links and their in-memory twin."""
