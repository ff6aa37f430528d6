"""Parameters, clock, events, settings, errors and seeds."""
