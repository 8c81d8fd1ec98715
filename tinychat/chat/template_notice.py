"""What a person is told about a model that was not made to talk."""

NO_TEMPLATE = "this model has no chat template: it continues a plain dialogue instead"
