"""Floor 1: the journal of a run, and what is made of it."""
