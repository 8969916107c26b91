"""A script may end while Arrow still reads ahead for a query that has returned."""

from __future__ import annotations

import os
import subprocess
import sys

from depthrate.storage.files.store import Store
from tests.support.s3_server import S3Server
from tests.support.tests_rows import commit

SCRIPT = """
import os, sys
import depthrate, s3fs
import depthrate.storage.query.results, depthrate.storage.query.scan as scan

def end(url):
    scan.FETCH_BELOW = 0  # like files of a compaction, which are read in parts
    depthrate.open(url).sql("select * from metrics limit 1").fetchall()
    sys.exit(0)

ends = []
for _ in range(5):
    child = os.fork()  # with all imports, and without store access
    if child == 0:
        end(sys.argv[1])
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(ends)
"""


def test_no_process_aborts_that_ends_while_arrow_reads_ahead(s3: S3Server) -> None:
    store = Store(s3.new_url())
    for number in range(40):
        commit(store, f"20260101T000000_0000000000{number:02d}", [f"t{number}"])
    call = [sys.executable, "-c", SCRIPT, store.url]
    result = subprocess.run(call, env={**os.environ, **s3.environment}, capture_output=True, text=True, timeout=240)
    assert result.stdout == f"{[0] * 5}\n", result.stdout + result.stderr[-2000:]
