"""Takes over a model of Hugging Face transformers: launch/import_hf.py --config FILE --model FOLDER --output FOLDER

The configuration is that of the run to make, with the sizes of the model. Its corpus must be made with the tokenizer of
the model. With --params the matrices of the blocks are stored as narrow factors, as launch/compress.py does. Prints the
validation loss, before and after. The output is a run of no steps: launch/pretrain.py goes on with its weights if
run.start_from names it.
"""

import sys
from pathlib import Path

from comera_dist.commands.arguments import plain_parser, positive
from comera_dist.commands.compress import TOKENS, told
from comera_dist.commands.shipped import config_file


def main() -> int:
    """Returns the exit status."""
    parser = plain_parser(__doc__)
    parser.add_argument("--config", type=config_file, required=True, help="YAML file of the run, or a shipped one")
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json, safetensors and tokenizer")
    parser.add_argument("--output", type=Path, required=True, help="directory of the run to make")
    parser.add_argument("--params", type=positive, help="stored numbers after a compression (default: none)")
    parser.add_argument("--format", help="of the narrow factors: low_rank (default) or block_train")
    parser.add_argument("--tokens", type=positive, help=f"training tokens to measure on (default: {TOKENS})")
    parser.add_argument("--max-tokens", type=positive, help="validation tokens of each loss (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of single keys")
    arguments = parser.parse_intermixed_args()
    if arguments.params is None and (arguments.format or arguments.tokens):
        parser.error("--format and --tokens are of a compression; give --params too, or leave them out")
    from comera_dist.exchange.foreign import import_model

    options = {name: getattr(arguments, name) for name in ("overrides", "params", "max_tokens")}
    options |= {"format": arguments.format or "low_rank", "tokens": arguments.tokens or TOKENS}
    return told(lambda: import_model(arguments.model, arguments.output, arguments.config, **options), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
