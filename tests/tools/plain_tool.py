"""A tool that calls a function of a test."""

from tinychat.tools.definitions import Tool
from tinychat.tools.runnable import RunnableTool, ToolResult


class PlainTool(RunnableTool):
    def __init__(self, name, function=lambda: "done", parameters=None, description="", exact_only=False):
        self.definition = Tool(name, description, parameters or {"type": "object", "properties": {}})
        self.function = function
        self.exact_only = exact_only

    def run(self, arguments, stop):
        return ToolResult(self.function(**arguments))
