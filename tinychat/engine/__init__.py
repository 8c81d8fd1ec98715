"""The engine that runs a model: the forward pass, its threads and memory; the engine, and the sequences on it."""
