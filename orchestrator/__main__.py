"""`python -m orchestrator` is the command `depthrate`."""

from orchestrator.cli import main

main()
