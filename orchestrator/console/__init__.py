"""What a terminal shows and a file takes: tables, printable texts, files written whole, the form of a usage error.

Imports no room above `analysis`.
"""
