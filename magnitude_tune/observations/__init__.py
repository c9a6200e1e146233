"""What was measured here before."""
