"""What a position does to the model: one encoding, one file.

An encoding takes position ids, not lengths, so a task or a wrapper may choose the ids and the model never knows.
"""

from headcount.registry import Registry

ENCODINGS = Registry("headcount.encodings")
