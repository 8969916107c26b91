"""Where packs run: the contract of an executor, and one file or a few for each."""
