"""Terminal output: tables, printable text, atomically written files and usage errors.

Imports no package above `analysis`.
"""
