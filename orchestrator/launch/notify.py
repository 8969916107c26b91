"""`--notify`: a command or a webhook is told of a launch's first failure and of its end."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from depthrate.orchestrator.console.tables import counted, printable
from depthrate.orchestrator.launch.outcome import RunState
from depthrate.orchestrator.launch.progress import Progress, Watcher

_ENDS = {
    RunState.COMPLETE: "is done",
    RunState.DETACHED: "is done",
    RunState.PROBED: "is done",
    RunState.INCOMPLETE: "ended with trials that are not done",
    RunState.INTERRUPTED: "was stopped",
}
NOTIFY_TIMEOUT_S = 20.0
"""What takes longer is given up: a launch waits for nobody."""
log = logging.getLogger("depthrate")


@dataclass
class Notifier:
    """Tells somebody, by a command or a webhook, how a launch is getting on."""

    target: str
    """A URL that is sent JSON (event, sweep, message), or a command that finds them in its environment."""
    sweep: str
    has_sent_failure: bool = False

    def wrap_watcher(self, watcher: Watcher) -> Watcher:
        """Return a watcher that also tells of the first failure."""

        def watch(progress: Progress) -> None:
            watcher(progress)
            if progress.failures and not self.has_sent_failure:
                self.has_sent_failure = True
                failure = progress.failures[0]
                self.notify(
                    "failure", f"{counted(len(failure.pack.trials), 'trial')} of {self.sweep} failed: {failure.error}"
                )

        return watch

    def notify_end(self, run: Callable[[], RunState]) -> RunState:
        """Run a launch, send its end, also that by an exception, and return its state."""
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
        """Tell an event; that nobody hears it is a warning, never an error."""
        content = {"event": event, "sweep": self.sweep, "message": printable(message)}
        try:
            (self._post if self.target.startswith(("http://", "https://")) else self._call)(content)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.warning("--notify %s: %s", self.target, error)

    def _post(self, content: dict[str, str]) -> None:
        body = json.dumps(content | {"text": content["message"]}).encode()  # `text` is what chat services show
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
