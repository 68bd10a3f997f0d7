"""Continues a text: python launch/generate.py --run runs/NAME [--prompt TEXT | --prompt-file FILE]

Prints the prompt and its continuation as it is written, or JSON. A prompt is the beginning of a document; without a
prompt the model begins a document of its own. A model that was trained on prompts and answers answers --ask TEXT; then
the answer alone is printed.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comera_dist.commands.arguments import positive, printing, refuse, run_parser
from comera_dist.errors import ComeraError, DataError
from comera_dist.runtime.launchers import check_is_alone

if TYPE_CHECKING:  # it imports torch
    from comera_dist.generate.writer import Writer

LARGEST_SEED = 2**62  # of a sample: torch takes numbers of 64 bits, and the seed grows by 1 with each sample


def main() -> int:
    """Ends this process with status 0, or returns the status of an error."""
    arguments = _arguments()
    from comera_dist.generate.sampling import Sampling

    try:
        check_is_alone("launch/generate.py")
        sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
        prompt = _prompt(arguments)
        # Heavy imports come after the command line is known to be good.
        from comera_dist.runtime.processes import leave, start_processes

        processes = start_processes(needs_group=False)
        from comera_dist.generate.writer import open_writer

        with redirect_stdout(sys.stderr):  # stdout is for the text alone
            writer = open_writer(arguments.run, processes, arguments.step)
        if arguments.ask is not None:
            prompt = writer.asked(prompt)
        _warn_of_length(writer, prompt, arguments.tokens)
        samples = writer.samples(prompt, arguments.tokens, sampling, arguments.seed, arguments.samples)
        with printing():
            if arguments.json:
                print(json.dumps(_record(arguments, writer, prompt, samples), indent=1))
            else:
                _print_as_it_comes(writer, prompt, samples, shows_prompt=arguments.ask is None)
    except ComeraError as error:
        return refuse(error, is_first=True)
    except KeyboardInterrupt:
        print(flush=True)
    leave(processes, 0)


def _arguments() -> argparse.Namespace:
    parser = run_parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", default="", help="text to continue")
    prompts.add_argument("--ask", help="text to answer, in the form of the prompts of training")
    prompts.add_argument("--prompt-file", type=Path, help="file of UTF-8 text to continue")
    parser.add_argument("--tokens", type=positive, default=200, help="largest number of new tokens (default: 200)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy decoding (default: 1)")
    parser.add_argument("--top-k", type=int, help="draw from this many most probable tokens (default: all)")
    parser.add_argument("--top-p", type=float, help="draw from the fewest tokens of this probability (default: all)")
    parser.add_argument(
        "--seed", type=_seed, default=1, help="seed of the first sample, + 1 for each next (default: 1)"
    )
    parser.add_argument("--samples", type=positive, default=1, help="texts to write (default: 1)")
    return parser.parse_args()


def _seed(text: str) -> int:
    if abs(int(text)) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text} is not possible; give a number of at most {LARGEST_SEED}")
    return int(text)


def _prompt(arguments: argparse.Namespace) -> str:
    file: Path | None = arguments.prompt_file
    try:
        if file is not None:
            return file.read_bytes().decode()  # `read_text` would change line ends
        option, prompt = ("--prompt", arguments.prompt) if arguments.ask is None else ("--ask", arguments.ask)
        prompt.encode()  # the command line may hold bytes that are not UTF-8, which a tokenizer cannot read
        return str(prompt)
    except UnicodeEncodeError as error:
        raise DataError(f"{option} is not UTF-8 text; name a file of UTF-8 text with --prompt-file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"--prompt-file {file} cannot be read as UTF-8 text ({error}); name another") from error


def _warn_of_length(writer: "Writer", prompt: str, tokens: int) -> None:
    longest = 1 + len(writer.tokenizer.encode(prompt)) + tokens
    if longest > writer.seq_len:
        print(
            f"The model was trained on sequences of {writer.seq_len} tokens; this text may reach {longest}.",
            file=sys.stderr,
        )


def _print_as_it_comes(
    writer: "Writer", prompt: str, samples: Iterable[Iterator[int]], shows_prompt: bool = True
) -> None:
    from comera_dist.generate.writer import text_pieces

    shown = prompt if shows_prompt else ""
    for index, ids in enumerate(samples):
        print(shown if index == 0 else f"\n---\n{shown}", end="", flush=True)
        for piece in text_pieces(writer.tokenizer, ids, prompt):
            print(piece, end="", flush=True)
        print()


def _record(
    arguments: argparse.Namespace, writer: "Writer", prompt: str, samples: Iterable[Iterator[int]]
) -> dict[str, Any]:
    from comera_dist.generate.writer import text_pieces

    record: dict[str, Any] = {"run": str(arguments.run), "step": writer.step, "prompt": prompt, "samples": []}
    for index, sample in enumerate(samples):
        ids = list(sample)
        record["samples"].append(
            {
                "seed": arguments.seed + index,
                "text": "".join(text_pieces(writer.tokenizer, ids, prompt)),
                "tokens": len(ids),
                "finish_reason": "stop" if ids[-1] == writer.tokenizer.eos_id else "length",
            }
        )
    return record


if __name__ == "__main__":
    sys.exit(main())
