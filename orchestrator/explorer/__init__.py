"""The explorer of a sweep: one page with figures and a table of its trials, as a file or live in `depthrate serve`.

`data` reads a sweep into typed columns, `page` makes the file. `explorer.js` and `explorer.css` are the page itself,
`common.js` is what it shares with the home page of `serve`, and `widget.js` shows it in a notebook's cell.
"""
