"""Cutting heads out for real: their rows and columns leave the matrices.

plan     what is to be done at each site, as data; one application, in place
family   plans for Hugging Face models, from their family's table
tracing  plans for anybody's modules, by tracing which outputs go to which head; tried, and never without proof
layers   layers without some of their features, and what stands where no head is left
cutting  a copy of a model without some of its heads, whose means may stay in biases; plans for headcount's own models
proof    a cut model has the output that the whole one has with those heads ablated
"""
