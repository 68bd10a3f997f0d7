"""Writes a trained model for other programs: python launch/export.py --run runs/NAME --output FOLDER [--to hf|tensors]

hf is a model of the library transformers with its tokenizer, tensors is one file of weights with our names.
"""

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

from comera_dist.commands.arguments import printing, refuse, run_parser
from comera_dist.errors import ComeraError
from comera_dist.storage.files import finite_json


def main() -> int:
    """The exit status."""
    parser = run_parser(__doc__)
    parser.add_argument("--output", type=Path, required=True, help="new folder")
    parser.add_argument("--to", choices=("hf", "tensors"), default="hf", help="form of the model (default: hf)")
    parser.add_argument(
        "--keep-factors", action="store_true", help="store weights as they were trained, which needs code in the folder"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    # Heavy imports come after the command line is known to be good.
    from comera_dist.exchange.export import export

    try:
        with redirect_stdout(sys.stderr):  # stdout is for the result alone
            done = export(arguments.run, arguments.output, arguments.to, arguments.keep_factors, arguments.step)
    except ComeraError as error:
        return refuse(error, is_first=True)
    with printing():
        if arguments.json:
            print(finite_json(asdict(done), indent=1))
        else:
            form = done.architecture or "weights"
            print(f"{done.folder}: {form} of step {done.step}, {done.bytes / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
