"""Which run next: a few runs chosen one after another, until nothing can beat the best by more than the noise."""
