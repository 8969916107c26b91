"""Figures of the report, one module per section. A module that defines `SECTION` is a section, with no other registration."""

import pkgutil
from importlib import import_module

from depthrate.orchestrator.report.report_data import ReportSection

_MODULES = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
SECTIONS: list[ReportSection] = sorted(
    (module.SECTION for module in _MODULES if hasattr(module, "SECTION")), key=lambda section: section.place
)
"""Sections in the order of the page."""
