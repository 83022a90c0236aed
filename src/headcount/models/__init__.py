"""The transformers that headcount trains, written for readability.

The suffix of a tensor's name lists its axes:

    B  batch      row of a batch
    L  length     position in a sequence
    Q  query      position that attends
    K  key        position that receives attention
    S  source     position in the encoder's input
    T  target     position in the decoder's input
    H  head
    D  d_model    width of the residual stream
    E  d_head     width of one head, d_model / n_heads

For example, `weights_BHQK` holds one attention weight per row, head, query and key.
"""
