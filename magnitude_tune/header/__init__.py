"""Which model? The GGUF header walk and what follows from it."""
