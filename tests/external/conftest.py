"""The stranger's adder."""

from adder_fixtures import _few_to_take_means_over, adder, home, sums  # noqa: F401
