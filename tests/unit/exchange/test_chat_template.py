"""The exported chat template lays messages out as the examples of training."""

import pytest

from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.data.prompt_form import PLAIN, PromptForm
from comera_dist.data.shards import Corpus
from comera_dist.exchange.chat_template import chat_template
from comera_dist.exchange.tokenizer_files import write_tokenizer
from data_prep.answers.dialogues import chat_of

transformers = pytest.importorskip("transformers", reason="transformers reads what is exported")
TURNS = ["system", "user", "assistant", "user", "assistant"]
FORMS = [PLAIN, 'Q: "{prompt}"\\\n\tA\'{{ x }}\u00e9\U0001f600:{response}']


@pytest.mark.parametrize("template", FORMS)
@pytest.mark.parametrize("roles", [TURNS, TURNS[1:3]])
def test_messages_become_the_examples_of_training(tmp_path, text_corpus, template, roles):
    corpus, form = Corpus(text_corpus), PromptForm(template)
    tokenizer = open_tokenizer(corpus.tokenizer_path)
    write_tokenizer(tokenizer, corpus, 64, tmp_path, chat_template(form))
    published = transformers.AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": role, "content": f"{role}\n{place} </s>"} for place, role in enumerate(roles)]
    prompt, answer = list(chat_of("", messages).examples(form))[-1]
    assert published.apply_chat_template(messages, tokenize=False) == prompt + answer
    asked = published.apply_chat_template(messages[:-1], tokenize=False)
    assert asked == prompt
    assert published(asked).input_ids == [corpus.eos_id, *tokenizer.encode(prompt)]
    silent = [{"role": role, "content": text} for role, text in zip(TURNS, ["", "hi", "ho"], strict=False)]
    prompt, answer = list(chat_of("", silent).examples(form))[-1]
    assert published.apply_chat_template(silent, tokenize=False) == prompt + answer
