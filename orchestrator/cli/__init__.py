"""The command line: `app` builds it, `commands/` has one file per command, `options` declares the shared options, and
`launch_output` prints the plan and the end of a run.

Imports every package except `notebook`, when a command is called. Start reading at `commands/run`.
"""
