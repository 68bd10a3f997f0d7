"""Token ids that are no text, in the rows that an encoder reads: ids of the tokenizer begin at SPECIALS.

Padding fills up a row, [CLS] begins it, [SEP] ends each text, [MASK] hides a token (Devlin et al. 2019).
"""

PADDING, CLS, SEP, MASK = range(4)
SPECIALS = 4
