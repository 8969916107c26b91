"""`--notify`: call a command or a webhook on a launch's first failure and at its end."""

import json
import logging
import os
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError

from depthrate.orchestrator.console.tables import counted, printable
from depthrate.orchestrator.launch.outcome import Progress, RunState

_ENDS = {
    RunState.COMPLETE: "is complete",
    RunState.DETACHED: "is submitted",
    RunState.PROBED: "has run its pilot packs",
    RunState.INCOMPLETE: "ended incomplete: some trials are not committed",
    RunState.NO_METRIC: "is complete, but no trial has the metric of a requested fit",
    RunState.INTERRUPTED: "was interrupted",
}
NOTIFY_TIMEOUT_S = 20.0
"""Seconds after which a notification is abandoned, so that it does not block the launch."""
log = logging.getLogger("depthrate")


@dataclass
class Notifier:
    """Sends a launch's first failure and its end to a command or a webhook."""

    target: str
    """URL that receives JSON (event, sweep, message), or command that receives them as environment variables."""
    sweep: str
    has_sent_failure: bool = False

    def watch(self, progress: Progress) -> None:
        """Send the first failure."""
        if progress.failures and not self.has_sent_failure:
            self.has_sent_failure = True
            failure = progress.failures[0]
            trials = counted(len(failure.pack.trials), "trial")
            self.notify("failure", f"{trials} of {self.sweep} failed: {failure.error}")

    def notify_end(self, run: Callable[[], RunState]) -> RunState:
        """Run a launch, send its end even after an exception, and return its state."""
        state = RunState.INCOMPLETE
        try:
            state = run()
        except KeyboardInterrupt:
            state = RunState.INTERRUPTED
            raise
        finally:
            self.notify("end", f"{self.sweep} {_ENDS[state]}")
        return state

    def notify(self, event: str, message: str) -> None:
        """Send an event. A failure to send is logged as a warning, never raised."""
        content = {"event": event, "sweep": self.sweep, "message": printable(message)}
        try:
            (self._post if self.target.startswith(("http://", "https://")) else self._call)(content)
        except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
            # neither the target nor the error, which repeats it: its path, query or arguments may contain a key
            log.warning("--notify: the %s notification was not sent (%s)", event, _reason(error))

    def _post(self, content: dict[str, str]) -> None:
        body = json.dumps(content | {"text": content["message"]}).encode()  # chat services show `text`
        request = urllib.request.Request(self.target, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=NOTIFY_TIMEOUT_S).close()

    def _call(self, content: dict[str, str]) -> None:
        added = {f"DEPTHRATE_{name.upper()}": text for name, text in content.items()}
        subprocess.run(
            self.target,
            shell=True,
            env=os.environ | added,
            stdin=subprocess.DEVNULL,
            timeout=NOTIFY_TIMEOUT_S,
            check=True,
        )


def _reason(error: Exception) -> str:
    """Return why a command or a request failed, without its text."""
    if isinstance(error, HTTPError | subprocess.CalledProcessError):
        return f"HTTP status {error.code}" if isinstance(error, HTTPError) else f"exit code {error.returncode}"
    reason = getattr(error, "reason", error)
    return (reason.strerror if isinstance(reason, OSError) else None) or type(error).__name__
