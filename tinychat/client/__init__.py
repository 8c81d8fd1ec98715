"""A client of servers with OpenAI's API, such as our own: a model that another program has loaded."""
