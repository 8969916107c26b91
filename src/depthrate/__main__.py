"""`python -m depthrate` is the command `depthrate`; what is installed comes before what lies in the working folder."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))
    from depthrate.orchestrator.cli.app import main

    main()
