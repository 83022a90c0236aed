"""The exercise: the lab that runs it, the files and answers that it asks for, and the published figures.

No other room imports this one. Its verb, its section and its form of a report are found by entry points, like those of
any other package.
"""
