"""The local server: OpenAI's and llama-server's endpoints over one engine."""
