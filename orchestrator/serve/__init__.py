"""`depthrate serve`: show a live store to any number of browsers, read-only.

`poller` polls the store, `summary`, `rows` and `renderer` prepare the responses, and `sql` runs queries. `access` checks
requests, `pages` contains the HTML, and `web` contains the routes. Starlette is imported when the command is called.
"""
