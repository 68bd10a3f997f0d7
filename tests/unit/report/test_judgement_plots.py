"""The plots of a report, on any counts."""

import pytest
from matplotlib.figure import Figure

from comera_dist.report.judgement_plots import draw_calibration, draw_loss_by_position


@pytest.mark.parametrize("most", [1, 7, 12_345, 10_267, 10**12])
def test_bars_of_a_calibration_are_accuracies_and_the_fullest_is_darkest(most):
    bins = [
        {"above": index / 3, "up_to": (index + 1) / 3, "targets": targets, "accuracy": index / 5}
        for index, targets in enumerate((most, 1, most // 2))
    ]
    axes = Figure().subplots()
    draw_calibration(axes, bins, 0.1)
    assert [bar.get_height() for bar in axes.patches] == [0.0, 0.2, 0.4]
    assert [bar.get_x() for bar in axes.patches] == [0, 1 / 3, 2 / 3]
    shades = [bar.get_facecolor()[3] for bar in axes.patches]
    assert shades[0] == max(shades) == 1.0


def test_the_loss_is_drawn_over_positions():
    axes = Figure().subplots()
    draw_loss_by_position(axes, [{"position": 1, "loss": 4.0}, {"position": 3, "loss": 2.0}])
    assert axes.lines[0].get_xydata().tolist() == [[1, 4], [3, 2]]
