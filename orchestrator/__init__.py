"""One launch from its plan to the report: rooms for what is started, watched, analysed and shown; no module of its own.

Read downwards: `cli` and `notebook` take what a person says; `launch` makes the plan and drives it; `executors` are where
packs run; `worker` is the process that runs them; `attempts` says what happened to them. `monitor`, `analysis`, `report` and
`export` read what is in the store. Imports point down: notebook, cli, export, report, executors.*, search, worker, launch,
monitor, console, analysis, attempts, executors.base (`tests/test_architecture.py`).
"""
