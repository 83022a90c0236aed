"""Ask the packaged adder for a sum, and print where one head attends while it answers."""

from headcount import load

run = load("sample:addition")
question = "374+814"
print(f"{question} = {run.predict(question)}")

head = "decoder.1.cross.2"
weights = run.attention(question, head)
print(f"{head} while it answers (rows: the digit to be predicted; columns: {' '.join(question)})")
for row in weights:
    print("  " + " ".join(f"{weight:.2f}" for weight in row))
