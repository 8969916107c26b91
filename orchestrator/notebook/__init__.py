"""Sweeps and results in notebooks: commands as methods, tables as HTML, figures."""
