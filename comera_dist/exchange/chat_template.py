"""The form of prompts as a template that transformers renders (`apply_chat_template`)."""

import json

from comera_dist.data.prompt_form import PromptForm


def chat_template(form: PromptForm) -> str:
    """A Jinja template that lays messages out as the prompts of training, up to the last answer.

    It writes no special tokens, because the tokenizer reads them as text. So render first and tokenize the text then,
    which puts the token of a beginning before it.
    """
    user = f"{_literal(form.before)} + message['content'] + {_literal(form.after)}"
    return (
        "{%- for message in messages -%}"
        "{%- if message['role'] == 'user' -%}{{ " + user + " }}"
        "{%- elif message['role'] == 'system' -%}"
        "{%- if message['content'] -%}{{ message['content'] + '\\n' }}{%- endif -%}"
        "{%- elif not loop.last -%}{{ message['content'] + '\\n' }}"
        "{%- else -%}{{ message['content'] }}"
        "{%- endif -%}{%- endfor -%}"
    )


def _literal(text: str) -> str:
    """A string literal of Jinja, whose escapes are those of JSON."""
    return json.dumps(text, ensure_ascii=False)
