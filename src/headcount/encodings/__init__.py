"""What a position does to the model: one encoding, one file.

An encoding takes position ids, not lengths: whoever calls it may choose them. It may touch the embeddings, the queries
and keys, or the scores, and nothing else in the model knows which encoding is in use.
"""

from headcount.registry import Registry

ENCODINGS = Registry("headcount.encodings")
