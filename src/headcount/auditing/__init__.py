"""A second pair of eyes: every known way of fooling oneself is a check, and all that apply run unasked."""

from headcount.registry import Registry

CHECKS = Registry("headcount.auditing.checks")
