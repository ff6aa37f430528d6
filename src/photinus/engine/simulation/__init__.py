"""Workers in virtual time."""
