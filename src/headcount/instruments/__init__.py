"""What acts on a model's heads, or reads them.

    sites      where heads meet the residual stream: the output projections
    gates      silence, scale or replace heads while a model runs
    capture    read z and contributions
    attention  read where heads look, off any model
    families/  layouts of Hugging Face models; wrapping: any model with its heads named; finding: paths and guesses
    opening    PyTorch's own attention, so that it calls its projection
    proof      show that the above reach what they should
    kinds/     what stands in for a silenced head
    recording  one pass, kept, so that many passes that differ from it late begin late
    stand_ins  who hands back what was recorded
    sweep      many ablations as one job

Everything here is written against output projections, not against a model class: any PyTorch module that has them
will do.
"""
