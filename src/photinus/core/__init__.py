"""Floor 0: flat parameters, clock, events, settings, errors, seeds."""
