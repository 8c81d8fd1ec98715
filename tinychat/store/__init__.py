"""Where models are kept and come from: the local store, the hub, and what the name of a model stands for."""
