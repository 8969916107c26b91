"""Sheets: typed columns, rows, sentences and notes of a set of fits, made once for the terminal, pages, LaTeX and notebooks."""
