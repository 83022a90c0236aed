"""Ablate and read the heads of any PyTorch module; usable without the rest of headcount.

    sites         find the output projections of a model's attention blocks (an attention block is called a site)
    parameters    handle output projections that are parameters instead of modules
    families      table of the layouts of Hugging Face models
    wrapping      a wrapper that names the heads of any model and calls the model with tensors
    gates         ablate, scale or replace heads during a forward pass; read z and contributions
    streams       read and patch residual streams and MLP outputs, layer by layer
    patching      path patching: change only what one head passes on to another head
    decoding      the first position of each pass while a model decodes
    replacements  the kinds of ablation: what replaces the output of an ablated head
    attention     read the attention weights of any model
    recording     record the module calls of a forward pass, and let modules return their recorded outputs
    replay        cache one forward pass, and run many interventions from it in one batch
    own_attention check that each head's slice of z depends on its own attention pattern
    proof         prove that gates and captures act on a model

z is the input of an output projection: the outputs of all heads of an attention block. The code depends on output
projections, not on model classes, so it works for any PyTorch module that has them. It imports only `errors`, `heads`,
`limits` and `registry` from headcount.
"""

from headcount.registry import Registry

FAMILIES = Registry("headcount.hooks.families")
REPLACEMENTS = Registry("headcount.hooks.replacements")
