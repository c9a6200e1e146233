"""Which settings? Pure."""
