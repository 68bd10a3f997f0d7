"""The page that compares runs."""

from pathlib import Path

from comera_dist.report.compare.charts import curve_looks, loss_charts, rank_charts, update_charts
from comera_dist.report.compare.differences import configuration_differences, learns_otherwise, reads_other_data
from comera_dist.report.compare.figures import figure_rows
from comera_dist.report.compare.run_files import RunFiles
from comera_dist.report.html.page import Head, render

_TEMPLATE = Path(__file__).with_name("page.html")


def comparison_page(runs: list[RunFiles]) -> str:
    """The page as HTML."""
    differences = configuration_differences(runs)
    return render(
        _TEMPLATE,
        title=", ".join(run.name for run in runs),
        runs=runs,
        heads=[Head(run.name, *look) for run, look in zip(runs, curve_looks(runs), strict=True)],
        figures=figure_rows(runs),
        losses=loss_charts(runs),
        ranks=rank_charts(runs),
        updates=update_charts(runs),
        differences=differences,
        reads_other_data=reads_other_data(differences),
        learns_otherwise=learns_otherwise(runs),
    )
