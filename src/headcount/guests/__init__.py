"""Models that others wrote: how they are loaded, what they are asked, and how heads are cut out of them.

guest      a model, what it is called, and what goes with it
adapter    a dozen lines by whoever brings a model of their own; skeleton* write them to start from
user_code  files of users, run as code: each with its own modules, and errors that name the line
exams/     data and metrics for real models, one file per kind; asking: those of an adapter
questions  an exam as the subject of an experiment
reading    one text, to look at heads on
cutting    heads cut out of Hugging Face models for real (cut_*), and saving: what is left, as a folder
foreign_*  the same for modules of any style, found by tracing and proven
pruned     either, with what it costs
"""
