"""How fast, and how sure. Pure."""
