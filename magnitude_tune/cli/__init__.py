"""The only place that prints and exits; one command a file."""
