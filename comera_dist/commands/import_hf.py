"""Takes over a model of Hugging Face transformers: launch/import_hf.py --config FILE --model FOLDER --output FOLDER

The configuration is that of the run to make, with the sizes of the model. Its corpus must be made with the tokenizer of
the model. With --params the matrices of the blocks are stored as narrow factors, as launch/compress.py does. Prints the
validation loss, before and after. The output is a run of no steps: launch/pretrain.py goes on with its weights if
run.start_from names it.
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path

from comera_dist.commands.arguments import plain_parser, positive, refuse
from comera_dist.commands.compress import TOKENS
from comera_dist.commands.shipped import config_file
from comera_dist.errors import ComeraError
from comera_dist.storage.files import finite_json


def main() -> int:
    """Returns the exit status."""
    parser = plain_parser(__doc__)
    parser.add_argument("--config", type=config_file, required=True, help="YAML file of the run, or a shipped one")
    parser.add_argument("--model", type=Path, required=True, help="folder with config.json, safetensors and tokenizer")
    parser.add_argument("--output", type=Path, required=True, help="directory of the run to make")
    parser.add_argument("--params", type=positive, help="stored numbers after a compression (default: none)")
    parser.add_argument("--format", default="low_rank", help="low_rank (default) or block_train")
    parser.add_argument("--tokens", type=positive, default=TOKENS, help="training tokens to measure on")
    parser.add_argument("--max-tokens", type=positive, help="validation tokens of each loss (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="overrides of single keys")
    arguments = parser.parse_intermixed_args()
    from comera_dist.exchange.foreign import import_model
    from comera_dist.report.tables import show_compression

    options = {key: getattr(arguments, key) for key in ("overrides", "params", "format", "tokens", "max_tokens")}
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the result alone
            result = import_model(arguments.model, arguments.output, arguments.config, **options)
    except ComeraError as error:
        return refuse(error, is_first=True)
    if arguments.json:
        print(finite_json(result, indent=1))
    else:
        show_compression(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
