"""Training the speed model on published benchmarks, and scoring it; the only room that imports scikit-learn."""
