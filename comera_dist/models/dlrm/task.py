"""The task of a DLRM: to predict which rows of a click log were clicked."""

import math
from typing import Any

from comera_dist.config.tree import Config
from comera_dist.data.clicks import ClickCorpus, ClickExamples, auc
from comera_dist.data.tasks import at_least, differs
from comera_dist.data.vocabulary import click_vocabulary
from comera_dist.models.dlrm.plan import DLRMFacts


class ClickPrediction:
    """The `Task` of predicting clicks. Raises ConfigError if the configured sizes do not fit the data."""

    def __init__(self, config: Config):
        self._corpus = ClickCorpus(config.data.corpus)
        self.fingerprint, self.contents = self._corpus.fingerprint, self._corpus.contents
        self.vocabulary = click_vocabulary(self._corpus.manifest)
        model, found = config.model, self._corpus
        if model.dense_features not in (None, found.dense_features):
            raise differs("model.dense_features", model.dense_features, found.dense_features)
        if model.table_rows is not None and len(model.table_rows) != len(found.table_rows):
            raise differs("the length of model.table_rows", len(model.table_rows), len(found.table_rows))
        wanted = model.table_rows or found.table_rows
        rows = tuple(
            at_least(f"model.table_rows[{index}]", given, rows)
            for index, (given, rows) in enumerate(zip(wanted, found.table_rows, strict=True))
        )
        self.facts = DLRMFacts(found.dense_features, rows)

    def train(self) -> ClickExamples:
        return self.held_out("train")

    def held_out(self, name: str) -> ClickExamples:
        return ClickExamples(self._corpus, name)

    def figures(self, measured: dict[str, Any], name: str) -> dict[str, float | None]:
        """Log-loss in nats, accuracy, and the area under the ROC curve, which is None if all rows have one label."""
        count, area = measured["targets"], auc(measured["scores"], measured["labels"])
        return {
            "loss": measured["loss"] / count,
            "accuracy": measured["correct"] / count,
            "auc": None if math.isnan(area) else area,
        }
