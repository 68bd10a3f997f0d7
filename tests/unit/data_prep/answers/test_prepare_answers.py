"""The command prepare_answers.py: answers come back from its columns, and no held-out prompt is in train."""

import json

import pytest
from tokenizer_kinds import KINDS

from comera_dist.data.answers import AnswerCorpus
from comera_dist.data.open_tokenizer import open_tokenizer
from comera_dist.errors import DataError
from data_prep import prepare_answers
from data_prep.answers.dialogues import Turn, chat_of
from data_prep.command import run
from data_prep.text.tokenizer import train_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    path.write_bytes(train_model(iter([f"question {i} gives {i * i}\n" for i in range(99)]), 320))
    return path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"files:{path}"


def prepare(source, tokenizer, output, *arguments):
    prepare_answers.prepare(["--source", source, "--tokenizer", str(tokenizer), "--output", str(output), *arguments])
    return AnswerCorpus(output)


def texts(corpus, split):
    """(prompt, answer) of each example of a split, decoded."""
    tokenizer, tokens = open_tokenizer(corpus.tokenizer_path, corpus.eos_id), corpus.split(split)["tokens"]
    found, start = [], 0
    for prompt_end, answer_end in zip(*corpus.ends(split), strict=True):
        found.append(
            tuple(tokenizer.decode(tokens[a:b].tolist()) for a, b in ((start, prompt_end), (prompt_end, answer_end)))
        )
        start = answer_end
    return found


def numbered(count):
    return [{"prompt": f"question {i % 40}", "response": f"{i} é\n2"} for i in range(count)]


def test_what_is_written_is_what_was_read(tmp_path, tokenizer, capsys):
    corpus = prepare(write_lines(tmp_path / "a.jsonl", numbered(100)), tokenizer, tmp_path / "out")
    found = texts(corpus, "train") + texts(corpus, "valid")
    assert sorted(found) == sorted((f"{row['prompt']}\n", row["response"]) for row in numbered(100))
    assert sum(counts.bytes for counts in corpus.counts.values()) == sum(len(a.encode()) for _, a in found)
    ends = corpus.ends("train")
    starts = [0, *ends[1][:-1]]
    assert corpus.counts["train"].targets == sum(b - a + 1 for a, b in zip(*ends, strict=True))
    longest = max(b - a + 1 for a, b in zip(starts, ends[1], strict=True))
    assert f"the longest example takes {longest} tokens" in capsys.readouterr().out
    corpus.contents.verify()


def test_no_prompt_is_in_both_splits(tmp_path, tokenizer):
    source = write_lines(tmp_path / "a.jsonl", numbered(200))
    corpus = prepare(source, tokenizer, tmp_path / "out", "--valid-fraction", "0.3")
    train, valid = ({prompt for prompt, _ in texts(corpus, split)} for split in ("train", "valid"))
    assert len(train) + len(valid) == 40
    assert not train & valid


def test_chats_that_begin_alike_are_in_one_split(tmp_path, tokenizer):
    """Each turn is an example, so the beginning of a chat is a whole prompt."""
    roles = ["user", "assistant", "user", "assistant"]
    chats = [[f"opening {i % 10}", f"answer {i}", f"question {i}", f"end {i}"] for i in range(100)]
    rows = [{"messages": [{"role": r, "content": c} for r, c in zip(roles, chat, strict=True)]} for chat in chats]
    corpus = prepare(write_lines(tmp_path / "a.jsonl", rows), tokenizer, tmp_path / "out", "--valid-fraction", "0.3")
    train, valid = ({prompt for prompt, _ in texts(corpus, split)} for split in ("train", "valid"))
    assert len(train) + len(valid) == 110
    assert not train & valid


def test_every_turn_of_a_chat_is_an_example_after_all_before_it(tmp_path, tokenizer):
    roles = ["system", "user", "assistant", "user", "assistant", "user"]
    messages = [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(roles)]
    source = write_lines(tmp_path / "a.jsonl", [{"messages": messages}, {"prompt": "p", "response": "r"}])
    form = ("--template", "<{prompt}>{response}", "--valid-fraction", "0")
    corpus = prepare(source, tokenizer, tmp_path / "out", *form)
    assert texts(corpus, "train") == [
        ("system 0\n<user 1>", "assistant 2"),
        ("system 0\n<user 1>assistant 2\n<user 3>", "assistant 4"),
        ("<p>", "r"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizers_of_all_kinds_serve(tmp_path, kind):
    path = tmp_path / "tokenizer.json"
    KINDS[kind]().save(str(path))
    corpus = prepare(write_lines(tmp_path / "a.jsonl", numbered(60)), path, tmp_path / "out")
    assert max(corpus.split("train")["tokens"]) < corpus.vocab_size


def test_answers_that_the_tokenizer_drops_are_counted(tmp_path):
    """A space of no width is a text, and no token for a tokenizer that cleans texts."""
    KINDS["word piece"]().save(str(path := tmp_path / "tokenizer.json"))
    rows = [{"prompt": "p", "response": "\u200b"}, *numbered(9)]
    corpus = prepare(write_lines(tmp_path / "a.jsonl", rows), path, tmp_path / "out", "--valid-fraction", "0")
    assert corpus.manifest["skipped"]["empty"] == 1
    assert corpus.counts["train"].examples == 9


def test_rows_without_an_answer_are_counted(tmp_path, tokenizer):
    good = {"prompt": "p", "response": "r", "messages": None}  # a table has each column in every row
    bad = [{"prompt": "p"}, {"prompt": "p", "response": " "}, {"prompt": 1, "response": "r"}]
    bad += [{"messages": []}, {"messages": [{"role": "user", "content": "p"}]}, {"messages": "text"}]
    bad += [{"messages": [{"role": "assistant", "content": "r"}]}, {"prompt": "p", "response": "long " * 50}]
    source, options = write_lines(tmp_path / "a.jsonl", [good, *bad]), ("--valid-fraction", "0", "--max-tokens", "40")
    corpus = prepare(source, tokenizer, tmp_path / "out", *options)
    assert texts(corpus, "train") == [("p\n", "r")]
    skipped = {kind: count for kind, count in corpus.manifest["skipped"].items() if count}
    assert skipped == {"broken_line": 4, "empty": 3, "too_long": 1}
    with pytest.raises(DataError, match="no text under 'response'"):
        prepare(source, tokenizer, tmp_path / "strict", *options, "--strict")


def test_the_same_settings_do_nothing_and_others_are_refused(tmp_path, tokenizer, capsys):
    source = write_lines(tmp_path / "a.jsonl", numbered(60))
    first = prepare(source, tokenizer, tmp_path / "out").fingerprint
    assert prepare(source, tokenizer, tmp_path / "out").fingerprint == first
    assert "nothing to do" in capsys.readouterr().out
    with pytest.raises(DataError, match="pass --overwrite"):
        prepare(source, tokenizer, tmp_path / "out", "--template", "{prompt} {response}")


def test_another_end_of_a_text_is_another_setting(tmp_path):
    KINDS["byte level"]().save(str(tmp_path / "tokenizer.json"))
    source, told = write_lines(tmp_path / "a.jsonl", numbered(60)), tmp_path / "tokenizer_config.json"
    for end in ("<|endoftext|>", "a"):
        told.write_text(json.dumps({"eos_token": end}))
        if end == "a":
            with pytest.raises(DataError, match="pass --overwrite"):
                prepare(source, tmp_path / "tokenizer.json", tmp_path / "out")
        else:
            prepare(source, tmp_path / "tokenizer.json", tmp_path / "out")


@pytest.mark.parametrize(
    ("rows", "options", "sentence"),
    [
        ([], [], "no answer for train was found; check --source and --prompt-key"),
        (numbered(1), ["--valid-fraction", "0.5"], "was found; name"),
        (numbered(1), ["--template", "{prompt}"], "does not hold"),
    ],
)
def test_impossible_data_end_with_one_sentence(tmp_path, tokenizer, capsys, rows, options, sentence):
    arguments = ["--source", write_lines(tmp_path / "a.jsonl", rows), "--output", str(tmp_path / "out")]
    status = run(lambda: prepare_answers.prepare([*arguments, "--tokenizer", str(tokenizer), *options]))
    assert status == 2
    assert sentence in capsys.readouterr().err


def test_a_chat_is_made_of_turns():
    user, assistant = ({"role": role, "content": role} for role in ("user", "assistant"))
    assert chat_of("", [user, assistant, user]).turns == (Turn("user", "assistant"),)
    for messages in ([user, user], [assistant], [user, {"role": "tool", "content": ""}], [{"role": "user"}], None):
        with pytest.raises(ValueError, match=r"messages are no list|do not take turns"):
            chat_of("", messages)
