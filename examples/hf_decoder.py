"""Which heads does a small GPT-2 read with? And what does `head_mask` do?

    python examples/hf_decoder.py

A GPT-2 of eight heads is trained on characters of a short story for some seconds. `head_mask`, which transformers 5
still swallows, does nothing, and nothing says so; `headcount.ablated` does what it says, or fails.
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
    """A tokenizer that knows every character of a text."""
    made = Tokenizer(models.WordLevel({char: i for i, char in enumerate(sorted(set(text)))}, unk_token=" "))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token=" ")


def train(ids: torch.Tensor, n_tokens: int, steps: int = 200) -> GPT2LMHeadModel:
    """A few seconds: enough for words to take shape."""
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
    model: Any = train(ids, len(tokenizer))  # Any: its `generate` is typed for another class
    some, wrapped = ids[:LENGTH][None], wrap(model)
    with torch.no_grad():
        clean = wrapped(some)
        masked = model(some, head_mask=torch.zeros(2, 4)).logits
        with ablated(model, wrapped.heads):
            without = wrapped(some)
            told = model.generate(some[:, :16], max_new_tokens=16, do_sample=False)
    print(f"head_mask of zeros changes the logits by {float((masked - clean).abs().max()):.1f}")
    print(f"all heads ablated change the logits by {float((without - clean).abs().max()):.1f}")
    print(f"and the story goes on with {tokenizer.decode(told[0, 16:])!r}")
    external = ExternalModel.of(model, tokenizer, name="story-gpt2")
    found = ablate_heads(external, STORY, replacements=["zero"], quiet=True).result
    print(f"loss {-found.conditions[0].clean:.3f} nats a character, {found.conditions[0].data}")
    for effect in sorted(found.heads, key=lambda effect: -effect.drop):
        print(f"  without {effect.short}: {effect.drop:+.3f} [{effect.low:+.3f}, {effect.high:+.3f}]")


if __name__ == "__main__":
    main()
