"""The exercise: the lab that does it, the files and answers it asks for, and the published figures.

Nothing else in headcount imports this room. Its verb, its section and its form of a report are found by entry points,
as those of any other package are.
"""
