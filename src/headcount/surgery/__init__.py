"""Cut heads out of a model: remove their rows and columns from the weight matrices.

plan     the changes at one site as data, and a function that applies them in place
family   plans for Hugging Face models, from the table of families
tracing  plans for any other module, by tracing which layer outputs belong to which head; every plan is proven
layers   layers without some of their features, and replacements for blocks without heads
cutting  copy a model without some of its heads, with or without their means in biases; plans for headcount's models
proof    prove that the cut model has the output of the whole model with these heads ablated
"""
