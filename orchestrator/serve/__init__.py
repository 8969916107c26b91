"""`depthrate serve`: show a live store to any number of browsers, read-only.

`poller` polls the store, `overview` and `sweeps` prepare the responses. `access` checks requests, `pages` makes the HTML,
and `web` contains the routes. Starlette is imported when the command is called.
"""
