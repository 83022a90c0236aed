"""Ask the packaged adder a sum, look at one head, and list where its attention falls."""

from headcount import load

run = load("sample:addition")
question = "374+814"
print(f"{question} = {run.predict(question)}")

head = "decoder.1.cross.2"
weights = run.attention(question, head)
print(f"{head} while it answers (rows: the digit it is about to say, columns: {' '.join(question)})")
for row in weights:
    print("  " + " ".join(f"{weight:.2f}" for weight in row))
