"""One engine a file; probes what an engine can do and runs it."""
