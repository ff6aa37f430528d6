"""The journal of a run, and the reports made from it."""
