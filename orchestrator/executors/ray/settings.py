"""Environment variables for Ray and Tune. Import this module before ray, which reads most of them at import."""

import os

# Ray's memory monitor kills workers because of unrelated processes, and Tune does not survive that.
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # keeps a cluster of one node on 127.0.0.1
# Tune's thread may briefly outlive the connection, and would then start another Ray.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

TUNE_SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_SYNCER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1000000000",  # unused, and its size grows with every trial
    "TUNE_WARN_THRESHOLD_S": "30",
    "RAY_AIR_NEW_OUTPUT": "0",  # the old output respects verbose=0
}
