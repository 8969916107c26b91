"""`depthrate serve`: a page in the browser that shows a store as it is, for as many as look, and changes nothing in it.

`poller` looks at the store, `summary`, `rows` and `drawn` make of that what browsers are sent, `sql` answers questions;
`access` says who may ask, `pages` has the pages and `web` the addresses. Starlette is imported when the command is called.
"""
