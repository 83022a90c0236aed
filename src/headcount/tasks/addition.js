// Sums that people type into a page (addition.py): what their tokens are, and what is right.

LIVE_TASKS.addition = ({ digits, low, high, least_first: isLeastFirst }) => {
  const smallest = low ?? (digits > 1 ? 10 ** (digits - 1) : 0);
  const greatest = high ?? 10 ** digits - 1;
  const PLUS = 10;
  const written = (number, n) => {
    const columns = [...String(number).padStart(n, "0")].map(Number);
    return isLeastFirst ? columns.reverse() : columns;
  };
  return {
    hint: `two numbers from ${smallest} to ${greatest}, such as 374+814`,
    parse(text) {
      const [, ...operands] = /^\s*([0-9]{1,15})\s*\+\s*([0-9]{1,15})\s*$/.exec(text) ?? [];
      const [a, b] = operands.map(Number);
      if (!operands.length)
        return { error: `Write two numbers from ${smallest} to ${greatest} with a plus between them.` };
      const off = [a, b].find((each) => each < smallest || each > greatest);
      if (off !== undefined) return { error: `${off} is out of range: write numbers from ${smallest} to ${greatest}.` };
      const source = [...written(a, digits), PLUS, ...written(b, digits)];
      return { text: `${a}+${b}`, source, right: written(a + b, digits + 1) };
    },
    /** An answer as a number, the most significant digit first. */
    show: (tokens) => (isLeastFirst ? [...tokens].reverse() : tokens).join(""),
  };
};
