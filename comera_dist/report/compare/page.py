"""The page that compares runs: one file without references to any other, for light and dark screens."""

from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from comera_dist.report.compare.charts import colours_of, loss_charts, rank_charts
from comera_dist.report.compare.differences import configuration_differences
from comera_dist.report.compare.figures import figure_rows
from comera_dist.report.compare.run_files import RunFiles


def comparison_page(runs: list[RunFiles]) -> str:
    """The page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        runs=runs,
        colours=colours_of(runs),
        figures=figure_rows(runs),
        losses=_marked(loss_charts(runs)),
        ranks=_marked(rank_charts(runs)),
        differences=configuration_differences(runs),
        now=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    )


def _marked(charts: dict[str, str]) -> dict[str, Markup]:
    """Drawings of our own, in which matplotlib has escaped all text."""
    return {name: Markup(svg) for name, svg in charts.items()}
