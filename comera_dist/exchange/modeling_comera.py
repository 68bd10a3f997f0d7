"""Models of transformers some of whose layers are stored as comera_dist trained them.

This file is a part of exported models; it needs torch and transformers alone. The configuration has two keys besides
those of its family: `comera_layers` (module names and records of stored layers) and `comera_tied` (output layers that
multiply by a stored table, and the names of these tables).
"""

from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MegatronBertConfig,
    MegatronBertForMaskedLM,
    MegatronBertForSequenceClassification,
)

from .comera_layers import Mixture, StoredTable, TiedOutput, stored_layer


class ComeraLlamaConfig(LlamaConfig):
    model_type = "comera_llama"


class ComeraBertConfig(BertConfig):
    model_type = "comera_bert"


class ComeraMegatronBertConfig(MegatronBertConfig):
    model_type = "comera_megatron_bert"


class WithStoredLayers(nn.Module):
    """The model that the next class builds, with stored layers in the places that the configuration names."""

    def __init__(self, config: LlamaConfig | BertConfig | MegatronBertConfig):
        super().__init__(config)
        for name, record in config.comera_layers.items():
            has_bias = getattr(self.get_submodule(name), "bias", None) is not None
            self.set_submodule(name, stored_layer(record, has_bias))
        for name, record in config.comera_layers.items():
            if owners := record.get("owners"):
                mixture = self.get_submodule(name)
                assert isinstance(mixture, Mixture)
                mixture.share([self.get_submodule(owner) for owner in owners])
        for output, table in config.comera_tied.items():
            stored = self.get_submodule(table)
            assert isinstance(stored, StoredTable)
            # BERT's head has the bias of the output; LLaMA's output lies in the model itself, which has none.
            self.set_submodule(output, TiedOutput(stored, self.get_submodule(output.rpartition(".")[0])))


class ComeraLlamaForCausalLM(WithStoredLayers, LlamaForCausalLM):
    config_class = ComeraLlamaConfig


class ComeraBertForMaskedLM(WithStoredLayers, BertForMaskedLM):
    config_class = ComeraBertConfig


class ComeraBertForSequenceClassification(WithStoredLayers, BertForSequenceClassification):
    config_class = ComeraBertConfig


class ComeraMegatronBertForMaskedLM(WithStoredLayers, MegatronBertForMaskedLM):
    config_class = ComeraMegatronBertConfig


class ComeraMegatronBertForSequenceClassification(WithStoredLayers, MegatronBertForSequenceClassification):
    config_class = ComeraMegatronBertConfig
