"""Files that `headcount report --exercise` writes."""

EXERCISE = {
    "answers.md",
    "problem1/results/training_log.json",
    "problem1/results/head_analysis/head_analysis.json",
    "problem1/results/head_analysis/ablation_results.json",
    "problem1/results/head_analysis/head_importance.png",
    "problem1/results/head_analysis/head_importance_ranking.txt",
    *(f"problem2/results/{name}/training_log.json" for name in ("sinusoidal", "learned", "none")),
    *(f"problem2/results/{name}/training_curves.png" for name in ("sinusoidal", "learned", "none")),
    "problem2/results/extrapolation/extrapolation_results.json",
    "problem2/results/extrapolation/extrapolation_curves.png",
    "problem2/results/extrapolation/learned_position_embeddings.png",
    "problem2/results/extrapolation/encoding_comparison.png",
    "problem2/results/pooling/pooling_comparison.json",
    "problem2/results/pooling/pooling_comparison.png",
}
"""Files of both experiments, but for pictures of patterns and what can be pruned."""
PATTERNS, PRUNING = "problem1/results/attention_patterns/", "problem1/results/head_analysis/pruning_results.json"
"""The folder of heat maps; and what is written of a model that has heads to lose."""
