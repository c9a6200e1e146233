"""The engine's compute graph, replayed: which tensors one micro batch needs, and how its allocator packs them."""
