"""One dialect of agent configuration a file."""
