"""The command line: `app` builds it, `commands/` has a file a verb, `options` what several of them take.

Imports every room but `notebook`, when a command is called. Begin with `commands/run`.
"""
