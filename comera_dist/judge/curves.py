"""Sums over a split that show where a model is wrong: its loss by the position in the window, and its calibration.

Shapes: B rows of a batch, S positions of a window, T = B·S targets, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comera_dist.errors import ConfigError
from comera_dist.judge.calibration import BINS, calibration_bins, calibration_error, calibration_sums
from comera_dist.judge.likelihood import LOGITS
from comera_dist.models.base import ScoresRows, WritesText
from comera_dist.ops.targets import IGNORED_TARGET
from comera_dist.run.evaluate import OpenSplit
from comera_dist.run.trained import Trained
from comera_dist.runtime.forward import compute_precision, measure
from comera_dist.runtime.processes import Processes

Sums = dict[str, Tensor]


def check_has_curves(trained: Trained) -> None:
    """Raises ConfigError for a model that predicts neither next tokens nor classes."""
    _sums_of(trained)


def measure_curves(trained: Trained, processes: Processes, split: OpenSplit) -> dict[str, Any]:
    """`calibration_error`, `calibration` by bin, and `loss_by_position` of a decoder.

    All targets of a mixture count alike. Collective. Raises ConfigError as `check_has_curves` does.
    """
    sums_of, device = _sums_of(trained), processes.device

    def summed(*batch: Tensor) -> Sums:
        with compute_precision(device, trained.config.train.precision):
            return sums_of(*batch)

    # `measure` concatenates the vectors of all batches, so they are summed here.
    found = measure(summed, split.rows.batches(), processes)
    bins = [_total(found[f"bin_{name}"], BINS) for name in ("targets", "confidence", "right")]
    curves: dict[str, Any] = {"calibration_error": calibration_error(*bins), "calibration": calibration_bins(*bins)}
    if "nats" in found:
        length = trained.config.data.seq_len
        curves["loss_by_position"] = _losses(_total(found["nats"], length), _total(found["counted"], length))
    return curves


def _sums_of(trained: Trained) -> Callable[..., Sums]:
    """The function from a batch to its sums."""
    model = trained.model
    if isinstance(model, WritesText):
        return lambda *batch: decoder_sums(model, *batch)
    if isinstance(model, ScoresRows):
        return lambda *batch: _row_sums(model, *batch)
    raise ConfigError(
        f"a model of model.kind = {trained.config.model.kind} with this head predicts neither the next token nor a "
        "class, so it has no report; leave --report out"
    )


def decoder_sums(model: nn.Module, *batch: Tensor) -> Sums:
    """Nats and targets at each position (S), and the sums of calibration, of a batch whose targets (B, S) come last."""
    found: list[Sums] = []
    first, rows = 0, 1  # all logits of a batch of training may not fit in memory; one row shows how many there are
    while first < len(batch[-1]):
        *inputs, targets_BS = (tensor[first : first + rows] for tensor in batch)
        logits_BSV = model(*inputs, None).float()
        nats_BS = F.cross_entropy(logits_BSV.mT, targets_BS, ignore_index=IGNORED_TARGET, reduction="none")
        counted_BS = (targets_BS != IGNORED_TARGET).double()
        at_positions = {"nats": nats_BS.double().sum(0), "counted": counted_BS.sum(0)}
        found.append(at_positions | calibration_sums(logits_BSV.flatten(0, 1).softmax(-1), targets_BS.flatten()))
        first, rows = first + rows, max(1, LOGITS // logits_BSV[0].numel())
    return {name: torch.stack([sums[name] for sums in found]).sum(0) for name in found[0]}


def _row_sums(model: ScoresRows, *batch: Tensor) -> Sums:
    """The sums of calibration of a batch whose targets (B) come last."""
    *inputs, targets_B = batch
    probabilities_BC = model.probabilities(*inputs)
    if probabilities_BC.shape[1] == 1:  # of a click; the other class is no click
        probabilities_BC = torch.cat((1 - probabilities_BC, probabilities_BC), dim=1)
    return calibration_sums(probabilities_BC, targets_B.long())


def _total(vectors: Any, length: int) -> Tensor:
    total: Tensor = vectors.view(-1, length).sum(0)
    return total


def _losses(nats_S: Tensor, counted_S: Tensor) -> list[dict[str, Any]]:
    """The mean loss in nats at each position, the first of which is 1, that has a target."""
    pairs = zip(nats_S.tolist(), counted_S.tolist(), strict=True)
    return [
        {"position": index + 1, "targets": int(counted), "loss": nats / counted}
        for index, (nats, counted) in enumerate(pairs)
        if counted
    ]
