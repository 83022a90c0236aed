"""Transformers written to be read.

Shapes. A name's suffix lists its axes, and signatures spell them out:

    B  batch      row of a batch
    L  length     position in a sequence
    Q  query      position that attends
    K  key        position that is attended to
    S  source     position in the encoder's input
    T  target     position in the decoder's input
    H  head
    D  d_model    width of the residual stream
    E  d_head     width of one head, d_model / n_heads

so `weights_BHQK` is one attention weight per row, head, query and key.
"""
