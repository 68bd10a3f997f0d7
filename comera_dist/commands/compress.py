"""Compresses a trained dense model: python launch/compress.py --run runs/NAME --params 500000 --output runs/SMALLER

Stores the dense matrices in the model's blocks as two narrow factors each, so that the whole model has at most so many
numbers. One decision over all layers chooses the ranks, by what each changes in the loss on training data. Prints the
validation loss before and after. The output is a run of no steps: launch/pretrain.py goes on with its weights if
run.start_from names it.
"""

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from comera_dist.commands.arguments import positive, printing, refuse, run_parser
from comera_dist.errors import ComeraError
from comera_dist.storage.files import finite_json

# Chosen: a layer's second moments are known from some hundred tokens for each of its features on.
TOKENS = 65_536


def main() -> int:
    """Returns the exit status."""
    parser = run_parser(__doc__)
    parser.add_argument("--params", type=positive, required=True, help="stored numbers of the compressed model")
    parser.add_argument("--output", type=Path, required=True, help="directory of the run to make")
    parser.add_argument("--format", default="low_rank", help="low_rank (default) or block_train")
    parser.add_argument("--tokens", type=positive, default=TOKENS, help="training tokens to measure on")
    parser.add_argument("--max-tokens", type=positive, help="validation tokens of each loss (default: all)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    from comera_dist.compress.compress_run import compress_run

    names = ("run", "step", "output", "params", "format", "tokens", "max_tokens")
    return told(lambda: compress_run(**{name: getattr(arguments, name) for name in names}), arguments.json)


def told(compute: Callable[[], dict[str, Any]], as_json: bool) -> int:
    """Prints a result of `compress_run`, which `compute` gives, as a table or as JSON. Returns the exit status."""
    from comera_dist.report.tables import show_compression

    try:
        with redirect_stdout(sys.stderr):  # stdout is for the result alone
            result = compute()
    except ComeraError as error:
        return refuse(error, is_first=True)
    with printing():
        if as_json:
            print(finite_json(result, indent=1))
        else:
            show_compression(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
