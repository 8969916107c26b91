"""The explorer of a sweep in a notebook cell."""

from collections.abc import Callable

import anywidget
import traitlets

from depthrate.orchestrator.explorer.page import WIDGET


class Explorer(anywidget.AnyWidget):
    """The explorer of a sweep, shown by a notebook. Its filters and axes stay when new results are read."""

    _esm = WIDGET
    data = traitlets.Bytes().tag(sync=True)
    """The sweep's data, as `SweepData.packed` returns them."""
    view = traitlets.Unicode().tag(sync=True)
    """Filters, axes and selection, as the address of the page has them after `#`."""

    def __init__(self, read: Callable[[], bytes], view: str):
        self._read = read
        super().__init__(data=read(), view=view)

    def refresh(self) -> None:
        """Read the store again and show what is new."""
        self.data = self._read()
