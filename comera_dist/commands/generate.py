"""Goes on with a text: python launch/generate.py --run runs/NAME [--prompt TEXT | --prompt-file FILE]

Prints prompt and continuation as they come, or JSON. A prompt is the beginning of a document; without one the model
begins a document of its own.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comera_dist.commands.arguments import positive, refuse
from comera_dist.errors import ComeraError, DataError

if TYPE_CHECKING:  # it imports torch
    from comera_dist.generate.writer import Writer

LARGEST_SEED = 2**62  # of a sample; torch takes numbers of 64 bits, and the next sample has the next seed


def main() -> int:
    arguments = _arguments()
    from comera_dist.generate.sampling import Sampling

    try:
        sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p)
        prompt = _prompt(arguments)
        # Heavy imports come after the command line is known to be good.
        from comera_dist.runtime.processes import leave, start_processes

        processes = start_processes(needs_group=False)
        from comera_dist.generate.writer import open_writer

        with redirect_stdout(sys.stderr):  # the text alone belongs on stdout
            writer = open_writer(arguments.run, processes, arguments.step)
        _say_how_long(writer, prompt, arguments.tokens)
        samples = writer.samples(prompt, arguments.tokens, sampling, arguments.seed, arguments.samples)
        if arguments.json:
            print(json.dumps(_record(arguments, writer, prompt, samples), indent=1))
        else:
            _print_as_it_comes(writer, prompt, samples)
    except ComeraError as error:
        return refuse(error, is_first=True)
    except BrokenPipeError:  # who reads the text has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:  # so has who watches it
        print(flush=True)
    leave(processes, 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="directory of the run")
    parser.add_argument("--step", type=int, help="step of the checkpoint (default: the newest)")
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt", default="", help="text to go on with")
    prompts.add_argument("--prompt-file", type=Path, help="file of UTF-8 text to go on with")
    parser.add_argument("--tokens", type=positive, default=200, help="tokens at most (default: 200)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default: 1)")
    parser.add_argument("--top-k", type=int, help="draw from so many of the most probable tokens (default: all)")
    parser.add_argument("--top-p", type=float, help="draw from the fewest tokens of so much probability (default: all)")
    parser.add_argument("--seed", type=_seed, default=1, help="of the first sample; the next has the next (default: 1)")
    parser.add_argument("--samples", type=positive, default=1, help="texts to write (default: 1)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    return parser.parse_args()


def _seed(text: str) -> int:
    if abs(int(text)) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"{text} is not possible; give a number of at most {LARGEST_SEED}")
    return int(text)


def _prompt(arguments: argparse.Namespace) -> str:
    if arguments.prompt_file is None:
        return _checked(arguments.prompt)
    try:
        return str(arguments.prompt_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"--prompt-file {arguments.prompt_file} cannot be read as UTF-8 text ({error}); name another"
        ) from error


def _checked(prompt: str) -> str:
    """Bytes of a command line that are no UTF-8 come as half characters, which no tokenizer knows."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise DataError("--prompt is not UTF-8 text; name a file of UTF-8 text with --prompt-file") from error
    return prompt


def _say_how_long(writer: "Writer", prompt: str, tokens: int) -> None:
    longest = 1 + len(writer.tokenizer.encode(prompt)) + tokens
    if longest > writer.seq_len:
        print(
            f"The model was trained on sequences of {writer.seq_len} tokens; this text may reach {longest}.",
            file=sys.stderr,
        )


def _print_as_it_comes(writer: "Writer", prompt: str, samples: Iterable[Iterator[int]]) -> None:
    from comera_dist.generate.writer import text_pieces

    for index, ids in enumerate(samples):
        print(prompt if index == 0 else f"\n---\n{prompt}", end="", flush=True)
        for piece in text_pieces(writer.tokenizer, ids):
            print(piece, end="", flush=True)
        print()


def _record(
    arguments: argparse.Namespace, writer: "Writer", prompt: str, samples: Iterable[Iterator[int]]
) -> dict[str, Any]:
    continuations = [list(ids) for ids in samples]
    return {
        "run": str(arguments.run),
        "step": writer.step,
        "prompt": prompt,
        "samples": [
            {
                "seed": arguments.seed + index,
                "text": writer.tokenizer.decode(ids),
                "tokens": len(ids),
                "finish_reason": "stop" if ids[-1] == writer.tokenizer.eos_id else "length",
            }
            for index, ids in enumerate(continuations)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
