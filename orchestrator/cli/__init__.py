"""The command line: `app` builds it, `commands/` has one file per command, and `options` declares the shared options.

Imports every package except `notebook`, when a command is called. Start reading at `commands/run`.
"""
