"""How many bytes, where, and why. Pure."""
