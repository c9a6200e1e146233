"""Which machine? Facts with their sources."""
