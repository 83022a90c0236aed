"""A university exercise on attention: the lab that runs it, the files that it asks for, and published results.

No other part of headcount imports this package. Its verb (`headcount lab`), its section and its form of a report are
found by entry points, like those of any other package.
"""
