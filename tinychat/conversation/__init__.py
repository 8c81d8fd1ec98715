"""Conversations: messages, history, prompts, saved files. No terminal is needed."""
