"""Content of tables: columns and their types, custom columns, parameters, states.

Imports `files`. Start with `schema`.
"""
