"""Models of transformers some of whose layers are stored as comera_dist trained them.

This file is a part of exported models; it needs torch and transformers alone. The configuration has three keys besides
those of its family: `comera_layers` (module names and records of stored layers), `comera_tied` (output layers that
multiply by a stored table, and the names of these tables) and `comera_gated` (module names of attention with gates of
its heads).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
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


class HeadGates(nn.Module):
    """Multiplies the result of each of H heads by 2 · sigmoid(w_h · x), where x (…, D) is the input of attention."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, width))
        self._gates = torch.empty(0)

    def attach(self, attention: nn.Module) -> None:
        """Hooks, because the code of attention between its input and its last layer differs between releases."""
        attention.register_forward_pre_hook(self._see, with_kwargs=True)
        attention.get_submodule("o_proj").register_forward_pre_hook(self._multiply)

    def _see(self, attention: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        x = named["hidden_states"] if "hidden_states" in named else inputs[0]
        self._gates = 2 * torch.sigmoid(F.linear(x, self.weight))

    def _multiply(self, last: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        (y,) = inputs  # (…, heads · head width)
        gates, self._gates = self._gates, torch.empty(0)  # gradients of a pass are not kept for the next one
        gated: Tensor = y.unflatten(-1, (gates.shape[-1], -1)) * gates[..., None]
        return gated.flatten(-2)


class WithStoredLayers(nn.Module):
    """The model that the next class builds, with stored layers and gates in the places that the configuration names."""

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
        for name in config.comera_gated:
            attention = self.get_submodule(name)
            attention.add_module("head_gates", gates := HeadGates(config.num_attention_heads, config.hidden_size))
            gates.attach(attention)


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
