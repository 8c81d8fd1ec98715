"""The details in which an image is seen, by OpenAI's names: the model's own, or one that takes few tokens."""

HIGH, LOW = "high", "low"
