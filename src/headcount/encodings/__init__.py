"""What a position does to the model: one encoding, one file.

An encoding takes position ids, not lengths: whoever calls it may choose them.
"""

from headcount.registry import Registry

ENCODINGS = Registry("headcount.encodings")
