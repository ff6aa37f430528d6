"""The messages between workers and coordinator, and the sessions that exchange them."""
