"""Runs on other machines, reached with the user's own ssh: `ssh` (paths, commands, rsync), `tunnel` (a viewer over
there, seen here) and `fetch` (copy a store).

Called by the command line. `ssh` and `tunnel` need only the standard library; `fetch` also needs the store's layout.
"""
