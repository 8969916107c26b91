"""Style of the page, and the script that renders its figures and sorts its tables, from page.css and page.js."""

from importlib import resources

STYLE = (resources.files(__package__) / "page.css").read_text(encoding="utf-8")
SCRIPT = (resources.files(__package__) / "page.js").read_text(encoding="utf-8")
