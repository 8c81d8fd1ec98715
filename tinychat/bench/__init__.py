"""How fast a model runs here, and how close that is to the machine's limits."""
