"""A trained model as a folder that transformers reads.

With dense weights it is an ordinary model of transformers. If some layers stay as they were trained, or attention has
gates, the folder has the code of these too (modeling_comera.py), which transformers runs if it is told to trust it.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from torch import Tensor

from comera_dist.data.open_text import prompt_form
from comera_dist.data.tokenizer import Tokenizer
from comera_dist.errors import ConfigError
from comera_dist.exchange.chat_template import chat_template
from comera_dist.exchange.stored_layers import densify_others, records
from comera_dist.exchange.tokenizer_files import special_ids, write_tokenizer
from comera_dist.formats.plan import Plan
from comera_dist.models.family import kind_of
from comera_dist.models.published import Published
from comera_dist.run.own_tokenizer import own_tokenizer
from comera_dist.run.trained import Trained
from comera_dist.storage.files import finite_json

CODE = ("modeling_comera.py", "comera_layers.py")


def write_hugging_face(trained: Trained, folder: Path, keeps_factors: bool) -> str:
    """Writes weights, configuration and tokenizer; changes the model. Returns the name of the class that reads them.

    ConfigError for a kind of model or a format that transformers cannot compute, DataError if the corpus is gone.
    """
    config = trained.config
    published = kind_of(config.model).published(config, trained.plan)
    if published is None:
        raise ConfigError(
            f"no class of transformers computes a model of model.kind = {config.model.kind}; export with --to tensors"
        )
    tokenizer = own_tokenizer(trained, published.data)
    stored = densify_others(trained.model, keeps_factors)
    settings = settings_of(published, stored)
    weights = trained.model.state_dict() | {name: torch.zeros(size) for name, size in published.zeros.items()}
    weights |= _in_their_order(weights, published, tokenizer)
    save_torch_state_dict(weights, folder, metadata={"format": "pt"})
    form = prompt_form(config.data.folders)
    template = None if form is None else chat_template(form)
    write_tokenizer(tokenizer, published.data, config.data.seq_len, folder, template)
    ids = special_ids(tokenizer, published.data)
    _write(folder / "config.json", settings | ids)
    if published.task == "ForCausalLM":
        _write(folder / "generation_config.json", ids)
    if "auto_map" in settings:
        for name in CODE:
            shutil.copyfile(Path(__file__).with_name(name), folder / name)
    return str(settings["architectures"][0])


def _in_their_order(weights: dict[str, Tensor], published: Published, tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The weights whose rows have another order in transformers. ConfigError for one that is stored as factors."""
    if factors := [name for name in published.rows if name not in weights]:
        raise ConfigError(
            f"{factors[0]} is stored as factors, whose rows cannot be put in the order of {tokenizer.path}; export "
            f"without --keep-factors"
        )
    return {name: weights[name][rows] for name, rows in published.rows.items()}


def settings_of(published: Published, stored: Plan) -> dict[str, Any]:
    """config.json without the ids of special tokens. ConfigError for a format that has no code to export."""
    settings = published.settings | {"dtype": "float32", "architectures": [published.family + published.task]}
    if not stored and not published.gated:
        return settings
    tied = {output: table for output, table in published.tied.items() if table in stored}
    family = f"Comera{published.family}"
    return settings | {
        # Another name than the dense model's: transformers without trust in this code must not take that one.
        "model_type": f"comera_{settings['model_type'].replace('-', '_')}",
        "architectures": [family + published.task],
        "auto_map": {
            "AutoConfig": f"modeling_comera.{family}Config",
            f"AutoModel{published.task}": f"modeling_comera.{family}{published.task}",
        },
        "comera_layers": records(stored),
        "comera_tied": tied,
        "comera_gated": published.gated,
        # transformers ties weights of dense tables alone.
        "tie_word_embeddings": settings["tie_word_embeddings"] and not tied,
    }


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(finite_json(content, indent=2))
