"""Print sheets of fits: their rows as a table, and their headlines and remarks as lines."""

from rich.console import Console

from depthrate.orchestrator.analysis.fit_requests import Fits
from depthrate.orchestrator.console.tables import print_rows
from depthrate.orchestrator.sheet.curve_sheets import rates_sheet
from depthrate.orchestrator.sheet.fit_sheet import FitSheet
from depthrate.orchestrator.sheet.markup import plain
from depthrate.orchestrator.sheet.value_sheets import layer_sheets, surface_sheet


def print_fits(console: Console, fits: Fits, *, wide: bool = False, more: str = "depthrate fit SWEEP --wide") -> None:
    """Print the fits of a sweep over one variable, over several, and over layers."""
    if fits.curves:
        print_sheet(console, rates_sheet(fits.curves), wide=wide, more=more)
    for sheet in [*map(surface_sheet, fits.surfaces), *layer_sheets(fits.layer_laws)]:
        console.print(f"{plain(sheet.title)}:", markup=False, highlight=False, soft_wrap=True)
        print_sheet(console, sheet, wide=wide, more=more)


def print_sheet(console: Console, sheet: FitSheet, *, wide: bool = False, more: str = "--wide") -> None:
    """Print a sheet. Columns with details are printed with `wide`, and of all others those that fit the terminal."""
    for title, part in sheet.groups if sheet.rows else []:
        if title:
            console.print(plain(title), markup=False, highlight=False, soft_wrap=True)
        columns = [column for column in part.used if wide or not column.is_detail]
        names = [plain(column.heading) for column in columns]
        rows = [list(map(plain, row)) for row in part.cells(columns)]
        numbers = [name for name, column in zip(names, columns, strict=True) if column.is_number]
        print_rows(console, names, rows, numbers=numbers, wide=wide, more=more)
    for line in [*sheet.headlines, *sheet.remarks, *sheet.column_notes]:
        console.print(plain(line), markup=False, highlight=False, soft_wrap=True)
