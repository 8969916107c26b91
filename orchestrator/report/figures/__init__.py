"""Figures of the report, one module per section. To add a section, write its module and extend SECTIONS."""

from __future__ import annotations

from depthrate.orchestrator.report.figures.declared import DECLARED
from depthrate.orchestrator.report.figures.fits import FIT_SECTION
from depthrate.orchestrator.report.figures.infinite_depth import LIMITS
from depthrate.orchestrator.report.figures.layers import LAYERS
from depthrate.orchestrator.report.figures.matrices import MATRICES
from depthrate.orchestrator.report.figures.requested import REQUESTED
from depthrate.orchestrator.report.figures.training import TRAINING
from depthrate.orchestrator.report.figures.vectors import VECTORS

SECTIONS = [FIT_SECTION, LIMITS, REQUESTED, DECLARED, TRAINING, LAYERS, VECTORS, MATRICES]
"""Sections in the order of the page."""
