"""The same answers for assistants: the tools of `rankscope mcp`, and the guide that `rankscope mcp --guide` prints.

Used by `cli`. It holds no analysis: a tool asks the analyses and returns the object of `views.envelope`, made small.
Only `server` imports the MCP SDK, an extra.
"""
