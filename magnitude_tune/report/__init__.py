"""One renderer a file; values in, text out."""
