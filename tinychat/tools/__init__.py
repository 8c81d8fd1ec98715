"""Tools that a model calls: their definitions, and the formats in which models write calls."""
