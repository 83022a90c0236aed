"""An automatic review: each known experimental mistake is a check, and all checks that apply are run."""

from headcount.registry import Registry

CHECKS = Registry("headcount.auditing.checks")
