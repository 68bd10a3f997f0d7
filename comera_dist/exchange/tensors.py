"""A trained model as one file of dense weights with our names, and a JSON file that describes them."""

from pathlib import Path

from safetensors.torch import save_file

from comera_dist.exchange.stored_layers import densify_others
from comera_dist.formats.plan import write_plan
from comera_dist.run.trained import Trained
from comera_dist.storage.files import finite_json


def write_tensors(trained: Trained, folder: Path) -> None:
    """Writes model.safetensors and config.json; changes the model.

    `layers` of config.json are the plans of layers without a dense equal, whose tensors are stored as they are.
    """
    stored = densify_others(trained.model, keeps_factors=False)
    weights = {name: tensor.contiguous() for name, tensor in trained.model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    described = {"model": trained.config.model.model_dump(mode="json"), "layers": write_plan(stored)}
    (folder / "config.json").write_text(finite_json(described, indent=2))
