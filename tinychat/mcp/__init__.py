"""A client of the Model Context Protocol: servers that offer tools, resources and prompts."""
