"""What acts on a model's heads, or reads them: usable alone, on any PyTorch module.

    sites         where heads meet the residual stream: the output projections, and how they are found
    parameters    output projections that are parameters: their products, as modules that hooks act on
    families      layouts of Hugging Face models: a table
    wrapping      any model, called with tensors, its heads named
    gates         ablate, scale or replace heads while a model runs; read z and contributions
    decoding      at which position a pass begins, while a model decodes
    replacements  what replaces the output of an ablated head: a table
    attention     read attention weights, off any model
    replay        one pass, cached, and many interventions replayed from it as one job
    own_attention check that each head's slice of z depends on its own attention pattern
    proof         show that the above reach what they should

Everything here is written against output projections, not against a model class: any PyTorch module that has them
will do. Nothing here needs more of headcount than its names of heads, errors, limits and registry.
"""

from headcount.registry import Registry

FAMILIES = Registry("headcount.hooks.families")
REPLACEMENTS = Registry("headcount.hooks.replacements")
