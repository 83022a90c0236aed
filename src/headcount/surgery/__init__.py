"""Cut heads out of a model: remove their rows and columns from the weight matrices.

plan     a plan lists the changes to one attention block (site) as data; a function applies it in place
family   plans for Hugging Face models, from the table of model families
tracing  plans for any other module, by tracing which layer outputs belong to which head; every plan is proven
layers   layers without some of their features, and replacements for blocks without heads
cutting  copy a model without some of its heads; plans for headcount's own models
proof    prove that the cut model has the output of the whole model with the same heads ablated
"""
