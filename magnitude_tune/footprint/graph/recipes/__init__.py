"""One recipe for each class of model: the tensors of its graph, in the engine's order."""
