"""Models that others wrote: how they are loaded, what they are asked, and how heads are cut out of them.

adapter    a dozen lines by whoever brings a model of their own
hub        folders of Hugging Face models
exams/     data and metrics for real models, one file per kind
questions  an exam as the subject of an experiment
cutting    heads cut out of Hugging Face models for real
saving     what is left, as a folder
"""
