"""Which heads of a small GPT-2 matter, and does `head_mask` work?

    python examples/hf_decoder.py

The script trains a GPT-2 with eight heads on the characters of a short story, for a few seconds. transformers 5 accepts
`head_mask` and ignores it without a warning. `headcount.ablated` ablates the heads or raises an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from headcount import ExternalModel, ablate_heads, ablated, wrap

STORY = Path(__file__).parent / "data" / "text.txt"
LENGTH = 48


def characters(text: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character of a text."""
    tokenizer = Tokenizer(models.WordLevel({char: i for i, char in enumerate(sorted(set(text)))}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=" ")


def train(ids: torch.Tensor, n_tokens: int, steps: int = 200) -> GPT2LMHeadModel:
    """Train for a few seconds, until the output resembles words."""
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": LENGTH, "vocab_size": n_tokens}
    model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=None, eos_token_id=None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(len(ids) - LENGTH, (24,))
        batch = torch.stack([ids[start : start + LENGTH] for start in starts])
        loss = torch.nn.functional.cross_entropy(model(batch).logits[:, :-1].transpose(1, 2), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    """Train, try `head_mask`, then ablate every head."""
    tokenizer = characters(STORY.read_text())
    ids = torch.tensor(tokenizer(STORY.read_text())["input_ids"])
    model: Any = train(ids, len(tokenizer))  # Any, because `generate` is typed for another class
    batch, wrapped = ids[:LENGTH][None], wrap(model)
    with torch.no_grad():
        clean = wrapped(batch)
        masked = model(batch, head_mask=torch.zeros(2, 4)).logits
        with ablated(model, wrapped.heads):
            without = wrapped(batch)
            continuation = model.generate(batch[:, :16], max_new_tokens=16, do_sample=False)
    print(f"head_mask of zeros changes the logits by {float((masked - clean).abs().max()):.1f}")
    print(f"all heads ablated change the logits by {float((without - clean).abs().max()):.1f}")
    print(f"and the story goes on with {tokenizer.decode(continuation[0, 16:])!r}")
    external = ExternalModel.of(model, tokenizer, name="story-gpt2")
    result = ablate_heads(external, STORY, replacements=["zero"], quiet=True).result
    print(f"loss {-result.conditions[0].clean:.3f} nats a character, {result.conditions[0].data}")
    for effect in sorted(result.heads, key=lambda effect: -effect.drop):
        print(f"  without {effect.short}: {effect.drop:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]")


if __name__ == "__main__":
    main()
