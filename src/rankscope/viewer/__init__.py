"""The browser timeline: an HTTP server over an open run, and the page (static/, plain ES modules).

Started by `rankscope view`. It reads runs through `store` and asks `analysis` for reports; it uses nothing of `views`.
A question of the page is a route: one function in one of the modules here, listed in docs/viewer.md.
"""
