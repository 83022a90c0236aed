"""Which cross-attention heads does a model need to reverse strings?

    python examples/hf_encoder_decoder.py

A small BART learns to reverse strings in a few seconds. The script ablates each head alone and cuts out the
cross-attention head with the smallest drop. The smaller model still reverses strings.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from headcount import ExternalModel, ablate_heads, prune_heads

LETTERS, N = "abcdefgh", 6
SPECIAL = ("<pad>", "<s>", "</s>")


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per letter."""
    ids = {token: i for i, token in enumerate((*SPECIAL, *LETTERS))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def strings(n: int) -> list[str]:
    """Return n random strings."""
    return ["".join(LETTERS[i] for i in row) for row in torch.randint(len(LETTERS), (n, N)).tolist()]


def train(tokenizer: PreTrainedTokenizerFast, steps: int = 350) -> BartForConditionalGeneration:
    """Train a small BART to output the reverse of each string."""
    torch.manual_seed(0)
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("ffn_dim", 64))}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 1}
    shape = {"d_model": 32, "vocab_size": len(tokenizer), "max_position_embeddings": 16, "dropout": 0.0}
    shape |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = BartConfig(**shape, **sides, **heads, forced_eos_token_id=None)
    model = BartForConditionalGeneration(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = strings(64)
        source, target = (torch.tensor(tokenizer(each)["input_ids"]) for each in (batch, [s[::-1] for s in batch]))
        loss = model(input_ids=source, labels=target).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    """Train, ablate, cut and generate."""
    tokenizer = make_tokenizer()
    model = ExternalModel.of(train(tokenizer), tokenizer, name="reverser")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "reversed.tsv"
        data.write_text("source\ttarget\n" + "".join(f"{each}\t{each[::-1]}\n" for each in strings(200)))
        result = ablate_heads(model, data, replacements=["zero"], quiet=True).result
        print(f"loss {-result.conditions[0].clean:.3f} nats a token")
        by_drop = sorted(result.heads, key=lambda effect: -effect.drop)
        for effect in by_drop:
            print(f"  without {effect.short}: {effect.drop:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]")
        cheap = [effect.head for effect in by_drop if ".cross." in effect.head][-1:]
        smaller = prune_heads(model, f"{folder}/smaller", data=data, heads=cheap, quiet=True).model
    assert isinstance(smaller, ExternalModel), "the heads were cut out"
    ids = torch.tensor(tokenizer(["fedcba"])["input_ids"])
    predicted = smaller.inner.generate(ids, max_new_tokens=N + 1, do_sample=False)
    answer = tokenizer.decode(predicted[0], skip_special_tokens=True).replace(" ", "")
    print(f"cut out {cheap[0]}: fedcba reversed is {answer}")


if __name__ == "__main__":
    main()
