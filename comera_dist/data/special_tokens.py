"""Special tokens of an encoder's rows (Devlin et al. 2019, section 3). Ids of the tokenizer begin at SPECIALS.

PADDING fills up a row, CLS starts it, SEP ends each text, MASK hides a token.
"""

PADDING, CLS, SEP, MASK = range(4)
SPECIALS = 4
NAMES = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")  # in tokenizers of published models, by our ids
