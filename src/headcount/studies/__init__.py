"""Many runs: plans, local processes, and summaries over seeds."""
