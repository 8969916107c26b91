"""Query results: SQL over the committed rows, results as pandas frames, features of a layer, exports.

Imports `attempts` and below. Start with `results`.
"""
