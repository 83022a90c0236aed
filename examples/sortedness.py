"""Test a classifier that was trained on 8 to 16 numbers on longer sequences: is each one non-decreasing?"""

from headcount import load, stretch

run = load("sample:sortedness")
for text in ("3 5 5 9", "3 5 4 9"):
    prediction = run.predict_one(text)
    print(f"{prediction.example}: {prediction.predicted} (probability {prediction.probability:.3f})")

result = stretch(run, lengths=[16, 64, 256], negatives=["shuffle", "adjacent"], n=40, quiet=True).result[0]
print(f"{result.label}, gives away: {', '.join(result.hard_codes) or 'nothing'}, trained on {result.trained}")
for cell in result.cells:
    print(f"{cell.length:5d} {cell.negative:8s} {cell.accuracy:.1%} [{cell.low:.1%}, {cell.high:.1%}] n={cell.n}")
