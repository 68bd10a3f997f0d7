"""A trained decoder as a model of lm_eval, EleutherAI's harness of tasks. Imports lm_eval, so import it where used.

A text is read as the beginning of a document, after EOS, as in training. The model reads at most as many tokens at once
as a sequence of training has: of a longer context the beginning is left out.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor, nn

from comera_dist.errors import ConfigError
from comera_dist.generate.sampling import Sampling
from comera_dist.generate.writer import Writer, text_pieces
from comera_dist.judge.likelihood import Ending, Likelihood, likelihoods
from comera_dist.runtime.processes import Processes
from comera_dist.runtime.together import together

T = TypeVar("T")
Encoded = tuple[Any, list[int], list[int]]  # a request's texts, the ids of its context, the ids of its continuation


class DecoderLM(TemplateLM):  # type: ignore[misc]  # lm_eval has no annotations
    """The model of `writer`; likelihoods are computed in `precision`. All methods that lm_eval calls are collective."""

    def __init__(self, writer: Writer, precision: str, processes: Processes):
        super().__init__()
        self._writer, self._precision, self._processes = writer, precision, processes
        self._rank, self._world_size, self._device = processes.index, processes.count, processes.device
        self.max_length = writer.seq_len
        self._truncated: set[tuple[str, str]] = set()  # requests, by `_key`

    @property
    def eot_token_id(self) -> int:
        return self._writer.tokenizer.eos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text, after EOS unless `add_special_tokens` is False."""
        ids = self._writer.tokenizer.encode(string)
        return ids if add_special_tokens is False else [self.eot_token_id, *ids]

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """For each (context, continuation): the continuation's log-probability in nats, and whether it is greedy.

        Raises ConfigError for a continuation without tokens of its own, or longer than a sequence of training.
        """
        return self._together(lambda: super(DecoderLM, self).loglikelihood(requests, disable_tqdm))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """For each (text,): its log-probability in nats. Each token is predicted once, in lm_eval's windows."""
        return self._together(lambda: self._rolling([request.args[0] for request in requests]))

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """For each (context, settings): the text that follows, up to the first stop text, EOS or number of tokens."""
        return self._together(lambda: [self._generate(seed, *request.args) for seed, request in enumerate(requests)])

    def has_truncated(self, request: Instance) -> bool:
        """Whether the beginning of the context of an answered request was left out."""
        return _key(request.args) in self._truncated

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.tensor(self._processes.gather(int(tensor)))

    def gather_object(self, obj: T, dst: int = 0) -> list[T] | None:
        gathered = self._processes.gather(obj)
        return gathered if self.rank == dst else None

    def barrier(self) -> None:
        self._processes.barrier()

    def _together(self, action: Callable[[], T]) -> T:
        """The result of `action`; a ComeraError of one process is raised on all, which would otherwise wait for it."""
        return together(action, self._processes)

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], **_: Any) -> list[tuple[float, bool]]:
        return [(one.nats, one.is_greedy) for one in self._judge(self._ending(*request) for request in requests)]

    def _ending(self, texts: Any, context: list[int], continuation: list[int]) -> Ending:
        if not continuation:
            raise ConfigError(
                f"the tokenizer joins the answer {texts[1]!r} to the end of the text before it, so it has no tokens of "
                "its own; begin the answers of the task with a space"
            )
        if len(continuation) > self.max_length:
            raise ConfigError(
                f"the answer {texts[1][:40]!r}... has {len(continuation)} tokens, and the model was trained on "
                f"sequences of {self.max_length}; leave this task out"
            )
        if len(context) + len(continuation) > self.max_length + 1:
            self._truncated.add(_key(texts))
        return Ending((context + continuation)[-self.max_length - 1 :], len(continuation))

    def _rolling(self, texts: list[str]) -> list[float]:
        windows = [
            [make_disjoint_window(pair) for pair in self._windows(self.tok_encode(text, add_special_tokens=False))]
            for text in texts
        ]
        judged = iter(self._judge(Ending(a + b, len(b)) for of_text in windows for a, b in of_text))
        return [sum(next(judged).nats for _ in of_text) for of_text in windows]

    def _windows(self, ids: list[int]) -> Iterable[tuple[list[int], list[int]]]:
        windows: Iterable[tuple[list[int], list[int]]] = get_rolling_token_windows(
            token_list=ids, prefix_token=self.eot_token_id, max_seq_len=self.max_length, context_len=1
        )
        return windows

    def _judge(self, endings: Iterable[Ending]) -> list[Likelihood]:
        model, vocab_size = self._writer.model, self._writer.tokenizer.vocab_size
        assert isinstance(model, nn.Module)
        return likelihoods(model, list(endings), vocab_size, self._precision)

    def _generate(self, seed: int, context: str, settings: dict[str, Any]) -> str:
        """The answer takes at most half of a sequence of training, so that some context is always left."""
        known: dict[str, Any] = dict(normalize_gen_kwargs(settings))
        tokens = min(known["max_gen_toks"], self.max_length // 2)
        prompt_ids, room = self.tok_encode(context), self.max_length - tokens
        if len(prompt_ids) > room:
            self._truncated.add(_key((context, settings)))
        temperature = known.get("temperature", 0.0) if known["do_sample"] else 0.0
        sampling = Sampling(temperature, known.get("top_k") or None, known.get("top_p"))  # top_k: 0 is no bound
        ids, text = next(self._writer.continuations(prompt_ids[-room:], tokens, sampling, seed)), ""
        for piece in text_pieces(self._writer.tokenizer, ids, context):
            text += piece
            if any(stop and stop in text for stop in known["until"]):
                break
        return str(postprocess_generated_text(text, known["until"], None))


def _key(arguments: tuple[Any, ...]) -> tuple[str, str]:
    """The context of a request, and the answer or the settings behind it: together they decide what is left out."""
    context, *behind = arguments
    return context, repr(behind)
