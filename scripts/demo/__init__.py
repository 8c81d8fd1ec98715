"""The corpus that the bundled model is trained on: one file per skill, seeded, written by us."""
