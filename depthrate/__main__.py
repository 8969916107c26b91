"""`python -m depthrate` is the command `depthrate`."""

from depthrate.orchestrator.cli.app import main

if __name__ == "__main__":
    main()
