"""What the audit says, at the place that it concerns."""

from headcount.describing.audit import (  # noqa: F401
    ABLATION,
    BEYOND,
    COLLAPSE,
    DATA,
    DECODING,
    FIGURES,
    MASKING,
    POSITIONS,
    SHORTCUTS,
    notices,
    urgent,
)
