"""A folder that shows how well a model predicts a split: figures as JSON, and plots."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from comera_dist.errors import ConfigError
from comera_dist.judge.curves import check_has_curves, measure_curves
from comera_dist.report.judgement_plots import draw_calibration, draw_loss_by_position
from comera_dist.report.plots import save_plot
from comera_dist.run.evaluate import evaluate_split, open_split
from comera_dist.run.trained import load_trained
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together
from comera_dist.storage.files import finite_json, write_whole


def judge_with_report(
    run: Path,
    processes: Processes,
    step: int | None,
    corpus: Path | None,
    split: str,
    max_tokens: int | None,
    folder: Path,
) -> dict[str, Any]:
    """The figures of `evaluate_run` and the curves of `measure_curves`, which the first process writes to `folder`.

    Collective. Raises ConfigError if the folder cannot be written, and the errors of both.
    """
    trained = load_trained(run, processes, step)
    # Mistakes are refused before anything is measured, because that takes long.
    check_has_curves(trained)
    opened = open_split(trained, processes, corpus, split, max_tokens)
    _together(lambda: folder.mkdir(parents=True, exist_ok=True), folder, processes)
    figures = evaluate_split(trained, processes, opened)
    curves = measure_curves(trained, processes, opened)
    result = {"run": str(run), "step": trained.checkpoint.manifest["step"], **figures, **curves}
    _together(lambda: _write(folder, result), folder, processes)
    return result


def _together(action: Callable[[], None], folder: Path, processes: Processes) -> None:
    """Calls `action` on the first process; its OSError is a ConfigError on all. Collective."""

    def guarded() -> None:
        try:
            if processes.is_first:
                action()
        except OSError as error:
            raise ConfigError(f"--report {folder} cannot be written ({error.strerror}); name another folder") from error

    together(guarded, processes)


def _write(folder: Path, result: dict[str, Any]) -> None:
    write_whole(folder / "evaluation.json", finite_json(result, indent=1))
    error, bins = result["calibration_error"], result["calibration"]
    save_plot(lambda axes: draw_calibration(axes, bins, error), str(folder / "calibration.png"))
    if "loss_by_position" in result:
        positions = result["loss_by_position"]
        save_plot(lambda axes: draw_loss_by_position(axes, positions), str(folder / "loss_by_position.png"))
