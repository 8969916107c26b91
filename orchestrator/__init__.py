"""A launch from its plan to the report: packages that start, watch, analyse and show it.

`cli` and `notebook` are thin callers of `api`. `launch` makes the plan and drives it, `executors` run packs in `worker`
processes, and `attempts` records what happened to them. `monitor`, `analysis`, `report` and `export` read the store.
`tests/test_architecture.py` checks that imports point down.
"""
